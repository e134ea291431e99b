"""A backup beside the venv that it holds dies with the disk of both: the doctor says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gates.core.check import Observed, answering_nodes, deploy_command
from gates.core.codes import section_unreadable, violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.observed.backup import BackupRow, Backups
from schema.observed.snapshot import Unreadable

Stored = Mapping[str, Backups | Unreadable]


def findings(plan: Plan, observed: Observed, stored: Stored) -> list[Violation]:
    """A warning for each node whose newest verified backup has no copy that was read back on
    another disk (incident D18).

    A node without a backup is not warned of: its engine may come from somewhere else.
    """
    found: list[Violation] = []
    for node, _ in answering_nodes(plan, observed):
        seen = stored.get(node.name)
        if isinstance(seen, Unreadable):
            found.append(section_unreadable(node.name, "backups", seen))
        elif seen is not None:
            found += _of(plan, node.name, seen)
    return found


def _of(plan: Plan, node: str, seen: Backups) -> Iterator[Violation]:
    row = newest(seen)
    if row is None or row.copies:
        return
    peer = next((other.name for other in plan.rig.nodes if other.name != node), None)
    mend = f"mount another disk, then: {deploy_command(plan, 'backup', 'to=FOLDER')}"
    yield violation(
        "backup-one-disk",
        node,
        f"the newest backup on {node} has no copy on another disk",
        evidence=f"{row.id} of {row.tree} lies in /var/lib/rigbook/backups alone",
        remedy=deploy_command(plan, "backup", f"to={peer}") if peer else mend,
    )


def newest(seen: Backups) -> BackupRow | None:
    """The newest backup of a node that was read back and found whole."""
    return next((row for row in seen.backups if row.verified_unix_s and not row.problem), None)


def lines(stored: Stored, now: float) -> list[str]:
    """A line for each node that has backups: how old the newest verified one is, and its copies."""
    return [
        f"{name}: {_words(seen, now)}"
        for name, seen in stored.items()
        if isinstance(seen, Backups) and seen.backups
    ]


def _words(seen: Backups, now: float) -> str:
    row = newest(seen)
    if row is None:
        return f"none of {len(seen.backups)} backups is verified"
    copies = [f"{copy.place} (read {_age(now - copy.unix_s)} ago)" for copy in row.copies]
    return (
        f"newest verified backup {row.id}, {_age(row.age_s or 0)} old, read "
        f"{_age(now - (row.verified_unix_s or now))} ago; "
        f"copies: {', '.join(copies) or 'none on another disk'}"
    )


def _age(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds // 60:.0f} min"
    return f"{seconds // 3600:.0f} h" if seconds < 172800 else f"{seconds // 86400:.0f} days"
