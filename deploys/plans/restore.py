"""What restore has to do: a verified backup of a venv back in its place, and proven.

An open change is undone first, without starting the engine: the former version of that change might
not run either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent
from pyinfra import host, logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.plans.backup import MIB, backups, backups_of_all, copies_of_all, describe
from deploys.plans.engine import ask_all, venv_of, wheels_spec
from deploys.plans.fabric import planned_route
from deploys.plans.measure import last_rates
from deploys.plans.rig import (
    Procedure,
    endpoint,
    engine_may_run,
    inventory_name,
    live_profile,
    once_a_run,
)
from deploys.plans.rollback import Chosen, choose
from facts.node import TreeBackups, fact_of, real
from operations import venv
from operations.engine import compared
from operations.rollback import RESTORE_TIMEOUT_S, recipe_baseline, revert_change
from operations.run import REPORT_S, Run
from operations.transfer import Move, Transfer, move_copies
from operations.venv import check_venv, wait_with_retries
from schema.artifact import BackupRow, Copies, CopyOf

# Backups that are gone from their node: where copies of them were seen, and their way back.


@dataclass(frozen=True)
class Copy:
    """A copy of a node's backup that was seen in `place`: on a disk that is mounted there, or with
    the node `giver` for the host called `owner`.
    """

    row: BackupRow
    place: str
    bytes: int
    owner: str = ""
    giver: str = ""


@dataclass(frozen=True)
class Returning:
    """The copies that come back before a restore, by node."""

    copies: Mapping[str, Copy] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()

    @property
    def taken(self) -> dict[str, str]:
        """The backup of each node that takes it from a disk there."""
        return {name: one.row.id for name, one in self.copies.items() if not one.giver}


def in_rig(known: Mapping[str, Copies], node: str) -> Iterator[Copy]:
    """The copies of a node's backups that lie in the rig: on its own disks, then with others."""
    own = known[node]
    for here in own.noted:
        if here.is_here:
            yield Copy(_row(here), here.place, here.bytes)
    for name, seen in known.items():
        for row in seen.others if name != node else ():
            if row.host == own.host and not row.problem:
                yield Copy(_row(row), row.place, row.bytes, own.host, name)


def _row(seen: CopyOf) -> BackupRow:
    return BackupRow(id=seen.backup, usable=True, problem=None, verified_unix_s=None,
                     tree=seen.tree, created_unix_s=seen.created_unix_s)  # fmt: skip


def copies_for(rig: Procedure, node: str) -> list[Copy]:
    """The copies that were seen of backups that are gone from a node, the nearest first."""
    here = {row.id for row in backups_of_all(rig)[node].backups}
    return [one for one in in_rig(copies_of_all(rig), node) if one.row.id not in here]


def elsewhere(rig: Procedure, node: str, backup_id: str | None) -> str:
    """The end of a refusal: where the node noted copies of a backup (None: of any) that nobody sees
    from here, and the commands that look further."""
    where = [f"{row.backup} in {row.place}" for row in copies_of_all(rig)[node].noted
             if not row.is_here and backup_id in (None, row.backup)]  # fmt: skip
    noted = f"; noted, and not looked at: {', '.join(where)}" if where else ""
    listed = f"pyinfra {inventory_name()} deploys/backup.py -y --data"
    return (
        f"{noted}; see: {listed} list=true; a copy on a disk that the node has not noted: {listed} "
        "take=ID --data from=FOLDER"
    )


def returning(rig: Procedure, copies: Mapping[str, Copy]) -> Returning:
    """How copies come back to their nodes, each told in a line."""
    moves = tuple(
        Move(Transfer(rig.run, "tree", one.giver, (name,), planned_route(rig)), one.row.id,
             one.owner, False)
        for name, one in copies.items() if one.giver
    )  # fmt: skip
    ways = {move.taker: f"{move.giver}, {move.transfer.route.words}" for move in moves}
    for name, one in copies.items():
        where, size = ways.get(name, one.place), f"{one.bytes / MIB:.0f} MiB"
        logger.info(f"    {one.row.id} is gone from {name}: bring it back from {where}, {size}")
    return Returning(copies, moves)


def bring_back(rig: Procedure, back: Returning) -> None:
    """Brings all of them and verifies them; called in deploy code. Where one does not come the run
    ends on all nodes.
    """
    if back.moves:
        move_copies(name="Bring it back from another node", run=rig.run, moves=back.moves)
    if back.taken:
        id_ = back.taken.get(host.name)
        venv.take_backup(name="Bring it back from its copy", request={"backup": id_} if id_ else {},
                    run=rig.run, members=back.taken)  # fmt: skip


LAST = "last"


@dataclass(frozen=True)
class RestoreWork:
    """The backup to restore on the rig's one node, and the open change that is undone before."""

    node: str
    venv: str
    package: str
    row: BackupRow
    open: Chosen
    runs: bool
    is_needed: bool
    unpacks: bool = True
    files: tuple[str, ...] = ()
    # what comes back to the node first
    back: Returning = field(default_factory=Returning)

    @property
    def stops(self) -> list[str]:
        """The node whose engine is to stop first; none where undoing what is open stops it."""
        return [self.node] if self.is_needed and self.runs and not self.open.id else []

    @property
    def force(self) -> bool:
        """Whether it was compared a moment ago, and is different."""
        return self.is_needed and self.unpacks and not self.open.id and not self.is_away

    @property
    def is_away(self) -> bool:
        """Whether it is gone from the node, and a copy of it is taken first."""
        return bool(self.back.copies)

    @property
    def starts(self) -> list[str]:
        """The node whose engine is to start."""
        return [self.node] if self.is_needed else []


@once_a_run
def plan(rig: Procedure, wanted: str) -> RestoreWork:
    """The work of this run; DeployError when there is no backup `wanted` (an id, or `last`)."""
    plan, state = rig.plan, rig.run.state
    node = plan.rig.head.name
    venv = venv_of(plan, node)
    if venv is None:
        raise DeployError(
            f"the recipe {plan.recipe.name} runs in a container, and no image is restored from a "
            f"backup; the former tag: pyinfra {inventory_name()} deploys/rollback.py -y --data "
            f"change=ID; an archive: pyinfra {inventory_name()} deploys/image.py -y --data "
            "archive=/PATH"
        )
    seen = backups(state, state.inventory.get_host(node)).backups
    usable = [row for row in seen if row.usable and not row.problem and row.tree == venv]
    if wanted == LAST:
        chosen = next((row for row in usable if row.verified_unix_s), None)
    else:
        chosen = next((row for row in usable if row.id == wanted), None)
    away = None if chosen else _copy_of(rig, node, venv, wanted)
    if away is not None:
        return away
    if chosen is None:
        known = ", ".join(row.id for row in usable[:5]) or "none"
        raise DeployError(
            f"{node}: no backup {wanted} of {venv} that can be used; known: {known}"
            f"{elsewhere(rig, node, wanted)}"
        )
    open_ = choose(rig, None)
    for line in open_.lines:
        logger.info(f"    first {line}")
    logger.info(f"    restore {describe(chosen)}")
    runs = engine_may_run(rig.snapshots[node])
    seen_now = _dry(state, node, chosen.id)
    needed = bool(open_.id or seen_now["changed"] or not runs)
    logger.info(f"    {seen_now['detail']}")
    return RestoreWork(
        node,
        venv,
        wheels_spec(plan).package,
        chosen,
        open_,
        runs,
        needed,
        # An open change is undone before: only then it is known what is different.
        bool(open_.id or seen_now["unpacks"]),
        tuple(seen_now["files"]),
    )


def _copy_of(rig: Procedure, node: str, venv: str, backup: str) -> RestoreWork | None:
    """The work with a backup that is gone from the node, whose copy was seen; None: none was."""
    found = next((one for one in copies_for(rig, node)
                  if (one.row.id, one.row.tree) == (backup, venv)), None)  # fmt: skip
    if found is None:
        return None
    open_ = choose(rig, None)
    for line in open_.lines:
        logger.info(f"    first {line}")
    runs, package = engine_may_run(rig.snapshots[node]), wheels_spec(rig.plan).package
    back = returning(rig, {node: found})
    return RestoreWork(node, venv, package, found.row, open_, runs, is_needed=True, back=back)


def _dry(state: State, node: str, backup: str) -> dict[str, Any]:
    """What a restore would do; DeployError: the backup must not go back.

    The host compares every byte; the operator sees how far it is.
    """
    request = {"backup": backup, "allow": ["older"], "dry": True}
    reporter = gevent.spawn(_report, real(state), node)
    try:
        return ask_all(state, "tree restore", {node: request}, RESTORE_TIMEOUT_S)[node]
    finally:
        reporter.kill()


def _report(state: State, node: str) -> None:
    """Log now and then how far a node's work on its backups is."""
    while True:
        gevent.sleep(REPORT_S)
        seen = fact_of(state, state.inventory.get_host(node), TreeBackups)
        for line in seen.working if seen is not None else ():
            logger.info(f"    {line}")


def unpacking(work: RestoreWork) -> str | None:
    """What is unpacked before the engine stops, in words; None: nothing, or an open change is
    undone first, and only then it is known what is different."""
    if not (work.force or (work.is_away and not work.open.id)):
        return None
    size = f" ({work.row.apparent_bytes / MIB:.0f} MiB)" if work.row.apparent_bytes else ""
    tree = work.row.real or work.venv
    return f"unpack {work.row.id}{size} beside {tree}; the engine goes on as it is"


def words(work: RestoreWork) -> list[str]:
    """What the restore will do, a line each."""
    row = work.row
    if not work.is_needed:
        return []
    if work.is_away:
        return [f"restore {row.id} in {work.venv}; unit and files too"]
    tree = (
        f"restore {row.id}: it trades places with what lies in {row.real} now, which is kept until "
        "it is pruned"
    )
    return [
        *([tree] if work.unpacks else []),
        *(f"{line}, as recorded" for line in work.files),
    ] or ["execute its program"]


def verify(rig: Procedure, work: RestoreWork) -> str:
    """Its program executed, a real answer, and how fast it is."""
    where, host = endpoint(rig.plan), rig.run.host(work.node)
    host.log(check_venv(rig.run.state, host, work.venv, work.package, imports=False))
    budget = rig.plan.recipe.expect.start_budget_s
    detail = wait_with_retries(rig.run, work.node, where, budget)
    profile = live_profile(rig.plan)
    before, published = last_rates(rig.plan, profile), recipe_baseline(rig.plan, profile)
    speed = compared(where.held_by_ours(), before, published, profile)
    return f"backup {work.row.id} serves: {detail}{speed}"


def revert(run: Run) -> str:
    """What was there before the restore, and why."""
    return revert_change(
        run.state, run.plan, run.id, run.touched, reason=run.failure, run=run.owner.token
    )
