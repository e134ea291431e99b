"""Backups of an installation on a host: made, read back, pruned. node does each of them whole."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation

from facts.backups import TreeBackups
from facts.rignode.context import fact_of
from operations.change.command import told, told_together
from operations.change.node_call import call
from operations.change.progress import call_with_progress
from operations.change.run import Run
from schema.observed.backup import BackupPlan, BackupRow, PrunePlan

# 30 GB at 20 MB/s; the remote side ends by then.
BACKUP_TIMEOUT_S = 1800
PRUNE_TIMEOUT_S = 600
MIB = 1 << 20


@operation()
def back_up(
    request: Mapping[str, Any], found: BackupPlan, done: dict[str, str]
) -> Generator[FunctionCommand, None, None]:
    """
    Back a tree up, unless a verified backup holds the very same of it.

    + request: what node's `tree backup` takes
    + found: what its dry run told
    + done: gets the backup's id by host, for the verification
    """
    if not found.stored and found.backup is not None:
        done[host.name] = found.backup
        host.noop(f"{found.backup} is verified and holds the same files")
        return
    size = f"{found.members} files and folders, {found.apparent_bytes / MIB:.0f} MiB"
    host.log(f"back up {found.tree}: {found.versions.text}; {size}")

    def work(state: State, host: Host) -> str:
        answer = _call(state, host, "tree backup", request)
        done[host.name] = answer["backup"]
        return (
            f"backup {answer['backup']}: {answer['detail']}, {answer['bytes'] / MIB:.0f} MiB, "
            f"{answer['took_s']:.1f} s"
        )

    yield told(work)


@operation()
def verify(
    ids: Collection[str], made: Mapping[str, str], pending: bool
) -> Generator[FunctionCommand, None, None]:
    """
    Read backups back against their manifests.

    + ids: the backups that are there
    + made: the one that this run makes, by host, once it is made
    + pending: whether this run makes one here
    """
    if not ids and not pending:
        host.noop("nothing to verify")
        return

    def work(state: State, host: Host) -> str:
        lines = []
        for backup in (*ids, *([made[host.name]] if pending else ())):
            answer = _call(state, host, "tree verify", {"backup": backup})
            size = f"{answer['members']} members, {answer['took_s']:.1f} s"
            lines.append(f"{answer['backup']} is whole: {size}")
        return "; ".join(lines)

    yield told(work)


@operation()
def copy(request: Mapping[str, Any], row: BackupRow) -> Generator[FunctionCommand, None, None]:
    """
    Copy a backup to another disk of the host and read it back there; read back alone where it is.

    + request: what node's `tree copy` takes
    + row: the backup
    """
    place = request["to"]
    host.log(f"copy {row.id} to {place}, or read the copy back that is there")

    def work(state: State, host: Host) -> str:
        answer = _call(state, host, "tree copy", request)
        what = "copied, and read back" if answer["made"] else "was there; it was read back"
        size = f"{answer['bytes'] / MIB:.0f} MiB, {answer['took_s']:.1f} s"
        return f"{answer['backup']} {what} in {answer['place']}: {size}"

    yield told(work)


@operation()
def take(
    request: Mapping[str, Any], run: Run | None = None, members: Collection[str] = ()
) -> Generator[FunctionCommand, None, None]:
    """
    Bring a backup that is gone from the host back from its copy, and verify it.

    + request: what node's `tree take` takes; empty where nothing is to come to the host
    + run: the run that ends on all nodes where it fails on one; None: each host by itself
    + members: the nodes of that run to which one comes
    """
    if not request:
        host.noop("it is on the host")
        return
    host.log(f"bring {request['backup']} back from its copy")

    def work(state: State, host: Host) -> str:
        answer = _call(state, host, "tree take", request)
        size = f"{answer['members']} members, {answer['took_s']:.1f} s"
        return f"{answer['backup']} is back from {answer['place']}, and whole: {size}"

    yield told_together(run, "take", members, work, BACKUP_TIMEOUT_S) if run else told(work)


@operation()
def prune(request: Mapping[str, Any], found: PrunePlan) -> Generator[FunctionCommand, None, None]:
    """
    Remove backups beyond the newest; the last verified one and what a change needs stay.

    + request: what node's `tree prune` takes
    + found: what its dry run told
    """
    if not found.removed and not found.displaced_removed:
        host.noop("nothing to remove")
        return
    for row in found.removed:
        host.log(f"remove backup {row.id} ({row.bytes / MIB:.0f} MiB): {row.why}")
    for kept in found.displaced_removed:
        size = f"{kept.bytes / MIB:.0f} MiB"
        host.log(f"remove {kept.path} ({size}), displaced by {kept.change}")

    def work(state: State, host: Host) -> str:
        answer = call(state, host, "tree prune", dict(request), PRUNE_TIMEOUT_S)
        kept = ", ".join(f"{row['id']} ({row['why']})" for row in answer["kept"])
        return f"{answer['freed_bytes'] / MIB:.0f} MiB freed; kept: {kept or 'nothing'}"

    yield told(work)


def _call(state: State, host: Host, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """node's answer; while it works the operator sees how far it is, and how long it will take."""

    def progress() -> Sequence[str]:
        seen = fact_of(state, host, TreeBackups)
        return seen.working if seen is not None else ()

    return call_with_progress(state, host, verb, request, BACKUP_TIMEOUT_S, progress)
