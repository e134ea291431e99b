"""What restore has to do: a verified backup of a venv back in its place, and proven.

An open change is undone first, without starting the engine: the former version of that change might
not run either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gevent
from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.common.ask_engine import ask_all, venv_of, wheels_spec
from deploys.common.load_and_gate import endpoint, inventory_name, once_a_run
from deploys.common.procedure import Procedure
from deploys.common.snapshot_view import engine_may_run, live_profile
from deploys.procedures.measure.history import last_rates
from deploys.procedures.rollback.rollback import Chosen, choose
from deploys.procedures.transfer import gone
from deploys.procedures.transfer.gone import Returning
from deploys.procedures.venv.backup import MIB, backups, describe
from facts.backups import TreeBackups
from facts.rignode.context import fact_of, real
from operations.change.progress import REPORT_S
from operations.change.run import Run
from operations.engine.baseline import compared
from operations.rollback.revert import RESTORE_TIMEOUT_S, recipe_baseline, revert_change
from operations.venv.venv import check_venv, wait_with_retries
from schema.observed.backup import BackupRow

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
            f"{gone.elsewhere(rig, node, wanted)}"
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
    found = next((one for one in gone.copies_for(rig, node)
                  if (one.row.id, one.row.tree) == (backup, venv)), None)  # fmt: skip
    if found is None:
        return None
    open_ = choose(rig, None)
    for line in open_.lines:
        logger.info(f"    first {line}")
    runs, package = engine_may_run(rig.snapshots[node]), wheels_spec(rig.plan).package
    back = gone.returning(rig, {node: found})
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
