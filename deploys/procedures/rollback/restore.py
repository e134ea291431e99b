"""What rollback does with `--data backup=ID`: the verified backup back in its place, and proven.

An open change is undone first, without a start: the way back must not end at a former version that
does not run either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.common.ask_engine import venv_of, wheels_spec
from deploys.common.load_and_gate import endpoint, inventory_name, once
from deploys.common.snapshot_view import engine_may_run
from deploys.procedures.rollback.rollback import Chosen, choose
from deploys.procedures.venv.backup import MIB, backups, describe
from facts.observe import in_host, real
from facts.rignode.call import AskFailed, ask_node
from facts.snapshot import bounded
from operations.change.node_call import StepFailed, call
from operations.change.run import Run
from operations.engine.baseline import compared
from operations.rollback.revert import RESTORE_TIMEOUT_S, UNDO_TIMEOUT_S, recorded, revert_change
from operations.venv import upgrade
from schema.desired.plan import UNIT, Plan
from schema.observed.backup import BackupRow
from schema.observed.snapshot import NodeSnapshot

WALK_TIMEOUT_S = 300
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
    _run: list[Run] = field(default_factory=list)

    def run(self, make: Callable[[], Run]) -> Run:
        """The one change of this run."""
        if not self._run:
            self._run.append(make())
        return self._run[0]


def decide(
    state: State, plan: Plan, snapshots: Mapping[str, NodeSnapshot], wanted: str
) -> RestoreWork:
    """The work of this run; DeployError when there is no such backup."""
    return once("restore", lambda: _decide(real(state), plan, snapshots, wanted))


def _decide(
    state: State, plan: Plan, snapshots: Mapping[str, NodeSnapshot], wanted: str
) -> RestoreWork:
    if plan.recipe.venv is None:
        raise DeployError(f"recipe {plan.recipe.name} runs in a container: it has no backups")
    node = plan.rig.head.name
    venv = str(venv_of(plan, node))
    seen = backups(state, state.inventory.get_host(node)).backups
    usable = [row for row in seen if row.usable and not row.problem and row.tree == venv]
    if wanted == LAST:
        chosen = next((row for row in usable if row.verified_unix_s), None)
    else:
        chosen = next((row for row in usable if row.id == wanted), None)
    if chosen is None:
        known = ", ".join(row.id for row in usable[:5]) or "none"
        raise DeployError(
            f"{node}: no backup {wanted} of {venv} that can be used; known: {known}; see: "
            f"pyinfra {inventory_name()} deploys/backup.py -y --data list=true"
        )
    open_ = choose(plan, snapshots, None)
    for line in open_.lines:
        logger.info(f"    first {line}")
    logger.info(f"    restore {describe(chosen)}")
    runs = engine_may_run(snapshots[node])
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


def _dry(state: State, node: str, backup: str) -> dict[str, Any]:
    """What a restore would do; DeployError: the backup must not go back."""
    request = {"backup": backup, "allow": ["older"], "dry": True}
    try:
        answer = ask_node(
            state, state.inventory.get_host(node), "tree restore", request, WALK_TIMEOUT_S
        )
    except AskFailed as error:
        raise DeployError(str(error)) from None
    return answer


def plan_lines(work: RestoreWork) -> list[str]:
    """What the restore will do, a line each."""
    row = work.row
    if not work.is_needed:
        return []
    size = f"{(row.apparent_bytes or 0) / MIB:.0f} MiB"
    tree = (
        f"restore {row.id} ({size}) beside {row.real}, then trade places; what lies there now is "
        "kept until it is pruned"
    )
    return [
        *([tree] if work.unpacks else []),
        *(f"{line}, as recorded" for line in work.files),
    ] or ["execute its program"]


def undone(state: State, work: RestoreWork) -> str:
    """Undoes the open change, engine stopped, nothing started. StepFailed when it is refused."""
    state = real(state)
    host = state.inventory.get_host(work.node)
    command = bounded(f"systemctl stop {UNIT}", UNDO_TIMEOUT_S)
    done, output = in_host(state, host, host.run_shell_command, command, _sudo=True)
    if not done:
        raise StepFailed(f"{work.node}: systemctl stop {UNIT}: {output.stderr[-300:]}")
    request = {"change": work.open.id, "start_units": False, "reason": "before a restore"}
    # It may have to restore a backup itself, where the change had installed in place.
    answer = call(state, host, "undo", request, RESTORE_TIMEOUT_S)
    return f"change {work.open.id} is {answer['status']}"


def restored(work: RestoreWork, run: Run) -> str:
    """The backup's files back in their place, unit and launch files too; its interpreter run.

    The program, which loads the whole engine, is executed while the engine starts.
    """
    host = run.host(work.node)
    run.touched.add(work.node)
    request: dict[str, Any] = {"change": run.change(), "backup": work.row.id, "allow": ["older"]}
    if work.unpacks and not work.open.id:
        request["force"] = True  # it was compared a moment ago, and is different
    answer = call(run.state, host, "tree restore", request, RESTORE_TIMEOUT_S)
    for line in answer.get("cleared", ()):
        host.log(line)
    what = "nothing was different" if not answer["changed"] else f"{answer['took_s']:.0f} s"
    upgrade.runs(run.state, host, work.venv, work.package, imports=False, quick=True)
    files = "".join(f"; {each}" for each in answer["files"])
    return f"{work.row.id} is back in {answer['real']} ({what}){files}"


def proof(plan: Plan, work: RestoreWork, run: Run) -> str:
    """Its program executed, a real answer, and how fast it is."""
    where, host = endpoint(plan), run.host(work.node)
    host.log(upgrade.runs(run.state, host, work.venv, work.package, imports=False))
    budget = plan.recipe.expect.start_budget_s
    detail = upgrade.answers_within(run, work.node, where, budget)
    return f"backup {work.row.id} serves: {detail}{compared(where, recorded(plan))}"


def returned(run: Run) -> str:
    """What was there before the restore, and why."""
    return revert_change(run.state, run.plan, run.id, run.touched, reason=run.failure)
