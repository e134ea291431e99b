"""Gates of room and of the journal: a change needs a place to be recorded, and to be alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

from gates.core import (
    GIB,
    MIB,
    Observed,
    Violation,
    answering_nodes,
    deploy_command,
    gib,
    per_node,
    require,
    section_unreadable,
    violation,
)
from node.rules.engine import DEAD_S
from schema.artifact import BackupRow, Backups
from schema.plan import Node, Plan
from schema.snapshot import ChangeSummary, Disk, Growth, Kept, NodeSnapshot, Unreadable

STATE_DIR = "/var/lib/rigbook"
STATE_ROOM = 100 * MIB
DOCKER_ROOM = 2048 * MIB
INODES = 1000
# A run of an older version, which does not say that it lives, is not at work when it wrote nothing
# into the journal for this long: engines load for minutes.
AT_WORK_S = 1800.0
# Runbooks that take up their own change that was cut off: these go on where it was,
GOES_ON = ("restart", "stop", "adopt", "image", "weights")
# of which these end on each node by itself,
EACH_NODE = ("image", "weights")
# and these undo first what is half done of it.
UNDOES_FIRST = ("serve", "upgrade", "kernel", "driver", "unit", "libvgpu")


@per_node
def disk_room(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Room for the journal's pre-images and docker's layers (faults.md 7 to 9)."""
    disks = {disk.path: disk for disk in require(snapshot.disks, "disks")}
    yield from _room(node, disks, STATE_DIR, STATE_ROOM, plan.recipe.container is None)
    if plan.recipe.container is not None:
        docker = require(snapshot.docker, "docker")
        for root in dict.fromkeys((docker.root, docker.store_root)):
            yield from _room(node, disks, root, DOCKER_ROOM)


def _room(
    node: Node, disks: dict[str, Disk], path: str, room: int, in_venv: bool = False
) -> Iterator[Violation]:
    disk, quoted = disks.get(path), shlex.quote(path)
    lack = "was not looked at" if disk is None else _lack(disk, room)
    if lack is not None:
        yield violation(
            "disk-room",
            node.name,
            f"the disk of {path} on {node.name} {lack}",
            evidence="the snapshot does not name it" if disk is None else _numbers(disk),
            remedy=f"on {node.name}: df -h {quoted}; df -i {quoted}; findmnt -T {quoted}; "
            + ("sudo du -xh --max-depth=2 / | sort -h" if in_venv else "sudo docker image prune"),
            unknown=disk is None,
        )


def _lack(disk: Disk, room: int) -> str | None:
    if disk.read_only:
        return "is read-only"
    if disk.free < room:
        return f"has {gib(disk.free)} free, wanted {gib(room)}"
    # btrfs counts no inodes; the host reports that as -1.
    if 0 <= disk.inodes_free < INODES:
        return f"has {disk.inodes_free} inodes free, wanted {INODES}"
    return None


def _numbers(disk: Disk) -> str:
    return (
        f"mounted at {disk.mount}: {gib(disk.free)} of {gib(disk.total)} free, "
        f"{disk.inodes_free} inodes free, {'read-only' if disk.read_only else 'writable'}"
    )


@per_node
def lock_free(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Nobody else works on the host now (faults.md 20); the lock dies with its process (21)."""
    journal = require(snapshot.journal, "journal")
    if journal.lock_held:
        yield violation(
            "lock-held",
            node.name,
            f"another run works on {node.name} now",
            evidence=f"{STATE_DIR}/lock is held by {journal.lock_holder or 'an unnamed process'}",
            remedy=f"wait for it to end; on {node.name}: sudo rignode status",
        )


@per_node
def changes_closed(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """No change is half done, none ended as neither old nor new (P4, faults.md 3 to 6)."""
    yield from open_changes(plan, node, snapshot, require(snapshot.journal, "journal").changes)


def open_changes(
    plan: Plan, node: Node, snapshot: NodeSnapshot, changes: tuple[ChangeSummary, ...]
) -> Iterator[Violation]:
    """A finding for each of these changes that is OPEN or INCONSISTENT."""
    boot = snapshot.identity.boot_id
    for change in changes:
        rollback = deploy_command(plan, "rollback", f"change={change.id}")
        if change.status == "OPEN":
            quiet = seconds_since_last_sign(change, snapshot)
            again = f"{rollback} (at the console of {node.name}: sudo rignode undo)"
            if change.deploy in (*GOES_ON, "serve"):
                again = f"{deploy_command(plan, change.deploy)}, or {again}"
            elif change.deploy in UNDOES_FIRST:
                again += f"; or the same deploys/{change.deploy}.py again"
            yield violation(
                "change-open",
                node.name,
                f"change {change.id} ({change.deploy}) on {node.name} "
                + ("was never finished" if quiet is None else "is not finished"),
                evidence=_story(change, boot),
                remedy=again
                if quiet is None
                else f"{change.owner} may still be at work (last sign of life {quiet:.0f} s ago): "
                f"wait; when that run is gone: {again}",
            )
        elif change.status == "INCONSISTENT":
            yield violation(
                "change-inconsistent",
                node.name,
                f"change {change.id} ({change.deploy}) left {node.name} neither old nor new",
                evidence=_story(change, boot),
                remedy=f"on {node.name}: sudo rignode status --verify; mend what it names, "
                f"then {rollback}",
            )


def seconds_since_last_sign(change: ChangeSummary, snapshot: NodeSnapshot) -> float | None:
    """Seconds since the run of an OPEN change last gave a sign of life, while it may still be at
    work; else None.

    A run holds the lock only while a step is done; while an engine loads or a node boots, its beat
    tells that somebody is at it. A run of an older version only writes its steps, and another boot
    has ended it.
    """
    identity = snapshot.identity
    if change.beat_unix_s is not None:
        # a sign from the future is older than a clock that was set back
        silent = abs(identity.clock_unix_s - change.beat_unix_s)
        return silent if silent < DEAD_S else None
    if change.saved_unix_s is None or change.boot_id != identity.boot_id:
        return None
    quiet = max(0.0, identity.clock_unix_s - change.saved_unix_s)
    return quiet if quiet < AT_WORK_S else None


def _story(change: ChangeSummary, boot_id: str) -> str:
    opened = datetime.fromtimestamp(change.opened_unix_s, timezone.utc)
    since = "this boot" if change.boot_id == boot_id else "an earlier boot"
    return (
        f"opened {opened:%Y-%m-%d %H:%M:%S} UTC by {change.operator}, in {since}; steps: "
        f"{'; '.join(change.steps) or 'none'}; reason: {change.reason or 'none given'}"
    )


@per_node
def journal_whole(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Every journal file can be read; a broken one may hide a half-done change (P4, P5)."""
    broken = require(snapshot.journal, "journal").broken
    if broken:
        yield violation(
            "journal-broken",
            node.name,
            f"{len(broken)} journal files of {node.name} cannot be read",
            evidence="; ".join(broken),
            remedy=f"on {node.name}: sudo rignode status; sudo ls -l {STATE_DIR}/journal; move "
            "a broken file away only when its change is known to be undone",
        )


GATES = (disk_room, lock_free, changes_closed, journal_whole)


# A backup beside the venv that it holds dies with the disk of both: the doctor says so.

Stored = Mapping[str, Backups | Unreadable]


def backup_findings(plan: Plan, observed: Observed, stored: Stored) -> list[Violation]:
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
            found += _backups_of(plan, node.name, seen)
    return found


def _backups_of(plan: Plan, node: str, seen: Backups) -> Iterator[Violation]:
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


def backup_lines(stored: Stored, now: float) -> list[str]:
    """A line for each node that has backups: how old the newest verified one is, and its copies."""
    return [
        f"{name}: {_backups_words(seen, now)}"
        for name, seen in stored.items()
        if isinstance(seen, Backups) and seen.backups
    ]


def _backups_words(seen: Backups, now: float) -> str:
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


# What rigbook keeps has a bound; where it is much all the same, the doctor says what frees it.

Growing = Mapping[str, Growth | Unreadable]
# Bytes of each kind that the rule (node/growth) would leave on a busy rig; above it a person looks.
LIMITS = {
    "changes": 64 * MIB,
    "blobs": 4 * GIB,
    "programs": 100 * MIB,
    "displaced": 20 * GIB,
    "backups": 100 * GIB,
    "copies": 100 * GIB,
    "images": 100 * GIB,
    "evidence": 64 * MIB,
}


def growth_findings(plan: Plan, observed: Observed, kept: Growing) -> list[Violation]:
    """A warning for each kind above its limit, and for what could not be told (core.md 14).

    A node that did not answer at all is named by another gate.
    """
    found: list[Violation] = []
    for node, _ in answering_nodes(plan, observed):
        grown = kept[node.name]
        if isinstance(grown, Unreadable):
            found.append(section_unreadable(node.name, "growth", grown))
        else:
            found += _growth_of(node.name, grown)
    return found


def _growth_of(node: str, grown: Growth) -> Iterator[Violation]:
    for row in grown.rows:
        if row.unreadable:
            why = Unreadable(unreadable=f"{row.what}: {row.unreadable}")
            yield section_unreadable(node, "growth", why)
        elif row.bytes > LIMITS[row.what]:
            prune = f'{{"what": "{row.what}", "keep": 1'
            yield violation(
                "growth-large",
                node,
                f"rigbook keeps {gib(row.bytes)} of {row.what} on {node}",
                evidence=f"{_growth_words(row)}; more than {gib(LIMITS[row.what])} is much",
                remedy=f"on {node}: sudo rignode prune '{prune}, \"dry\": true}}' shows what would "
                f"go; sudo rignode prune '{prune}}}' removes it",
            )


def growth_lines(kept: Growing) -> list[str]:
    """A line a node: how many of each kind there are, and their bytes."""
    return [
        f"{name}: keeps {', '.join(map(_growth_words, grown.rows))}"
        for name, grown in kept.items()
        if isinstance(grown, Growth)
    ]


def _growth_words(row: Kept) -> str:
    if row.unreadable:
        return f"{row.what} unknown"
    size = f"{row.bytes / MIB:.1f} MiB" if row.bytes < GIB else gib(row.bytes)
    return f"{row.what} {row.count} ({size})" if row.count else f"{row.what} 0"
