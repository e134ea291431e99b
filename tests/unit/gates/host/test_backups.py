"""D18: a backup that lies on one disk alone is named; its age is told."""

from __future__ import annotations

import pytest

from gates.host import backups
from schema.observed.backup import BackupRow, Backups, CopyRow
from schema.observed.snapshot import Unreadable
from tests.unit.builders import tower_rig
from tests.unit.builders.snapshots import healthy
from tests.unit.builders.spark_rig import spark_plan

NOW = 1_000_000.0
HOUR = 3600
NEW, OLD = "20260102T000000Z-a1b2", "20260101T000000Z-a1b2"
COPY = (CopyRow(place=f"/mnt/disk/rigbook/a/{NEW}", unix_s=NOW - 3 * HOUR),)


def row(id_: str, verified: float | None, copies: tuple[CopyRow, ...] = (),
        problem: str | None = None) -> BackupRow:  # fmt: skip
    """A backup as a node lists it."""
    return BackupRow(id=id_, usable=problem is None, problem=problem, verified_unix_s=verified,
                     tree="/opt/engine/venv", age_s=5 * HOUR, copies=copies)  # fmt: skip


def stored(*rows: BackupRow) -> Backups:
    """These backups, newest first."""
    return Backups(backups=rows, partial=(), working=(), displaced=())


FIVE = NOW - 5 * HOUR
TABLE = {
    "no copy": (stored(row(NEW, FIVE), row(OLD, FIVE, COPY)), True,
                f"newest verified backup {NEW}, 5 h old, read 5 h ago; "
                "copies: none on another disk"),
    "a copy": (stored(row(NEW, FIVE, COPY)), False,
               f"newest verified backup {NEW}, 5 h old, read 5 h ago; "
               f"copies: /mnt/disk/rigbook/a/{NEW} (read 3 h ago)"),
    "the newest is not verified": (stored(row(NEW, None), row(OLD, FIVE, COPY)), False,
                                   f"newest verified backup {OLD}, 5 h old"),
    "the newest is damaged": (stored(row(NEW, FIVE, problem="rot"), row(OLD, FIVE)), True,
                              f"newest verified backup {OLD}"),
    "none is verified": (stored(row(NEW, None)), False, "none of 1 backups is verified"),
    "none": (stored(), False, None),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_a_backup_on_one_disk_is_named(name: str) -> None:
    seen, is_named, words = TABLE[name]
    plan = spark_plan()
    one = plan.rig.nodes[0].name
    found = backups.findings(plan, healthy(plan), {one: seen})
    assert [(v.code, v.node, v.severity) for v in found] == (
        [("backup-one-disk", one, "warn")] if is_named else [])  # fmt: skip
    if is_named:
        assert f"deploys/backup.py --data to={plan.rig.nodes[1].name}" in found[0].remedy
    told = backups.lines({one: seen}, NOW)
    assert (told == []) if words is None else told[0].startswith(f"{one}: {words}")


def test_a_rig_of_one_node_has_no_peer_to_name() -> None:
    plan = tower_rig.tower_plan()
    (one,) = plan.rig.nodes
    seen = {one.name: stored(row(NEW, FIVE))}
    found = backups.findings(plan, tower_rig.healthy(plan), seen)
    assert "deploys/backup.py --data to=FOLDER" in found[0].remedy


def test_backups_that_cannot_be_listed_are_no_silence() -> None:
    plan = spark_plan()
    seen = {node.name: Unreadable(unreadable="nothing (limit 120 s)") for node in plan.rig.nodes}
    found = backups.findings(plan, healthy(plan), seen)
    assert {v.code for v in found} == {"backups-unreadable"} and len(found) == len(seen)
    assert backups.lines(seen, NOW) == []
