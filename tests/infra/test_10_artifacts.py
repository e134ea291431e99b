"""Artifact layer: the weights, and the files that rigbook wrote."""

from __future__ import annotations

import pytest
from testinfra.host import Host

from gates.weights import weights
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from tests.infra.observe import Observation, as_planned, no_findings, serve
from tests.infra.plugin import Rig


def test_weights_are_whole_and_equal(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Names, sizes and magic of every shard, on every node."""
    no_findings(rig, observation, weights.GATES, node)


def test_files_are_as_the_recipe_renders_them(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """Launch script, environment and unit: content, mode, owner."""
    as_planned(rig, node, snapshot, frozenset({"file", "unknown"}))


def test_files_read_directly(rig: Rig, node: Node, host: Host) -> None:
    """The same files without rignode in between: what it reports is what is there."""
    for document in rig.plan.documents[node.name]:
        there = host.run("cat -- %s", document.path)
        if there.rc != 0 or there.stdout != document.content:
            what = "differs from the recipe" if there.rc == 0 else there.stderr.strip()
            pytest.fail(
                f"{node.name}: {document.path}: {what}; mend it with: {serve(rig)}", pytrace=False
            )
