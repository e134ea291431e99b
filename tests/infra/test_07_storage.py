"""Storage layer: room, and no change of the rig that was left half done."""

from __future__ import annotations

from gates.host import storage
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from tests.infra.observe import Observation, no_findings
from tests.infra.plugin import Rig


def test_disks_have_room(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Room for docker's layers and for the journal's pre-images."""
    no_findings(rig, observation, [storage.disk_room], node)


def test_no_change_is_open_or_inconsistent(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """A run that was killed leaves its change OPEN until somebody rolls it back."""
    gates = [storage.lock_free, storage.changes_closed, storage.journal_whole]
    no_findings(rig, observation, gates, node)
