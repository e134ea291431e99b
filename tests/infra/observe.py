"""What the tests look at: one snapshot a node, and lines that say what is wrong with it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pytest
from pyinfra.api.exceptions import FactProcessError

from facts.node import Snapshot
from gates.core import Gate, Violation
from gates.gate_sets import check
from gates.recipe import drift
from schema.plan import Node
from schema.snapshot import NodeSnapshot, Unreadable
from tests.infra.plugin import Connections, Rig

T = TypeVar("T")


@dataclass(frozen=True)
class Observation:
    """All nodes at one moment, and how far each clock was off this machine's, in seconds."""

    snapshots: Mapping[str, NodeSnapshot | Unreadable]
    clock_off_s: Mapping[str, float]


def observe(rig: Rig, connections: Connections) -> Observation:
    """Asks all nodes at the same time."""
    names = [node.name for node in rig.plan.rig.nodes]
    with ThreadPoolExecutor(len(names)) as pool:
        seen = dict(zip(names, pool.map(lambda n: _look(rig, connections, n), names), strict=True))
    return Observation(
        {name: snapshot for name, (snapshot, _) in seen.items()},
        {name: off for name, (_, off) in seen.items()},
    )


def _look(rig: Rig, connections: Connections, name: str) -> tuple[NodeSnapshot | Unreadable, float]:
    command = Snapshot().command(rig.plan.requests[name].model_dump_json())
    before = time.time()
    try:
        answer = connections.host(name).run(command)
        after = time.time()
        if answer.rc != 0 and not answer.stdout.strip():
            words = " ".join(answer.stderr.split())[-300:]
            return Unreadable(unreadable=f"exit status {answer.rc}: {words or 'no word'}"), 0.0
        snapshot = Snapshot().process(answer.stdout.splitlines())
    except FactProcessError as error:
        return Unreadable(unreadable=str(error)), 0.0
    except RuntimeError as error:
        # testinfra raises the whole result when ssh itself fails (exit status 255).
        result = error.args[0]
        said = getattr(result, "stderr", str(result))
        return Unreadable(unreadable=f"ssh: {' '.join(said.split())[-300:]}"), 0.0
    clock = snapshot.identity.clock_unix_s
    return snapshot, min(clock - before, 0.0) or max(clock - after, 0.0)


def reached(observation: Observation, node: Node) -> NodeSnapshot:
    """The node's snapshot; a node that gave none fails the test in one line."""
    seen = observation.snapshots[node.name]
    if isinstance(seen, Unreadable):
        mend = f"ssh {node.ssh_user}@{node.lan_address} true; if it is off, power it on"
        expect(False, node, f"not reached: {seen.unreadable}", "it answers", mend)
    assert isinstance(seen, NodeSnapshot)
    return seen


def expect(good: bool, node: Node | str, found: str, wanted: str, mend: str) -> None:
    """Fails the test in one line: node, what is, what should be, the command that mends it."""
    if not good:
        name = node if isinstance(node, str) else node.name
        pytest.fail(f"{name}: {found}; should be: {wanted}; mend it with: {mend}", pytrace=False)


def known(value: T | Unreadable, node: Node, section: str) -> T:
    """A section of a snapshot; one that the host could not report fails the test."""
    if isinstance(value, Unreadable):
        pytest.fail(f"{node.name}: {section} could not be read: {value.unreadable}", pytrace=False)
    return value


def serve(rig: Rig) -> str:
    """The command that brings the rig to its recipe."""
    data = "".join(f" --data {shlex.quote(pair)}" for pair in rig.pairs)
    return f"pyinfra {rig.inventory} deploys/serve.py -y{data}"


def no_findings(
    rig: Rig, observation: Observation, gates: Iterable[Gate], node: Node, warn: bool = False
) -> None:
    """Fails with each finding of the gates on `node`, with its warnings only if `warn`."""
    lines = [
        _line(rig, finding)
        for finding in check(rig.plan, observation.snapshots, gates)
        if finding.node in (node.name, None) and (warn or finding.severity == "block")
    ]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def _line(rig: Rig, finding: Violation) -> str:
    return (
        f"{finding.node or 'rig'}: {finding.summary} ({finding.code}: {finding.evidence}); "
        f"mend it with: {finding.remedy.replace('INVENTORY', rig.inventory)}"
    )


def as_planned(rig: Rig, node: Node, snapshot: NodeSnapshot, kinds: frozenset[str]) -> None:
    """Fails with each difference of these kinds between the node and its plan."""
    found = [d.text for d in drift(rig.plan, node, snapshot) if d.kind in kinds]
    if found:
        lines = [f"{node.name}: {text}" for text in found]
        pytest.fail("\n".join([*lines, f"mend it with: {serve(rig)}"]), pytrace=False)
