"""Gates of room and of the journal: a change needs a place to be recorded, and to be alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime, timezone

from gates.core.check import MIB, deploy_command, gib, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from node.rules.heartbeat import DEAD_S
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.files import ChangeSummary
from schema.observed.machine import Disk
from schema.observed.snapshot import NodeSnapshot

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
