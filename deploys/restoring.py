"""What rollback does with `--data backup=ID`: the verified backup back in its place, and proven.

An open change is undone first, without a start: the way back must not end at a former version that
does not run either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.backing_up import MIB, backups, describe
from deploys.knowing import venv_of, wheels_spec
from deploys.rolling_back import Chosen, choose
from deploys.serving import may_run, own_unit
from deploys.support import endpoint, inventory_name, once
from facts.asking import AskFailed, ask_node
from facts.observe import in_host, real
from facts.rig import bounded
from operations import upgrade
from operations.comparing import compared
from operations.giveback import UNDO_TIMEOUT_S, give_back, recorded
from operations.node import StepFailed, call
from operations.run import Run
from schema.backup import BackupRow
from schema.engine import UNIT, Plan
from schema.snapshot import NodeSnapshot

RESTORE_TIMEOUT_S = 1800
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
    runs = may_run(own_unit(snapshots[node]))
    different = _different(state, node, chosen.id)
    needed = bool(open_.id or different or not runs)
    logger.info(f"    {different or 'the tree is as the backup'}")
    return RestoreWork(node, venv, wheels_spec(plan).package, chosen, open_, runs, needed)


def _different(state: State, node: str, backup: str) -> str:
    """In what the tree is not as the backup, "" when it is; DeployError: it must not go back."""
    request = {"backup": backup, "allow": ["older"], "dry": True}
    try:
        answer = ask_node(
            state, state.inventory.get_host(node), "tree restore", request, WALK_TIMEOUT_S
        )
    except AskFailed as error:
        raise DeployError(str(error)) from None
    return str(answer["detail"]) if answer["changed"] else ""


def plan_lines(work: RestoreWork) -> list[str]:
    """What the restore will do, a line each."""
    row = work.row
    if not work.is_needed:
        return []
    size = f"{(row.apparent_bytes or 0) / MIB:.0f} MiB"
    return [
        f"restore {row.id} ({size}) beside {row.real}, then trade places; what lies there now is "
        "kept until it is pruned",
    ]


def undone(state: State, work: RestoreWork) -> str:
    """Undoes the open change, engine stopped, nothing started. StepFailed when it is refused."""
    state = real(state)
    host = state.inventory.get_host(work.node)
    command = bounded(f"systemctl stop {UNIT}", UNDO_TIMEOUT_S)
    done, output = in_host(state, host, host.run_shell_command, command, _sudo=True)
    if not done:
        raise StepFailed(f"{work.node}: systemctl stop {UNIT}: {output.stderr[-300:]}")
    request = {"change": work.open.id, "start_units": False, "reason": "before a restore"}
    answer = call(state, host, "undo", request, UNDO_TIMEOUT_S)
    return f"change {work.open.id} is {answer['status']}"


def restored(work: RestoreWork, run: Run) -> str:
    """The backup's files back in their place, and its program executed."""
    run.touched.add(work.node)
    request = {"change": run.change(), "backup": work.row.id, "allow": ["older"]}
    answer = call(run.state, run.host(work.node), "tree restore", request, RESTORE_TIMEOUT_S)
    what = "nothing was different" if not answer["changed"] else f"{answer['took_s']:.0f} s"
    line = upgrade.runs(run.state, run.host(work.node), work.venv, work.package, imports=False)
    return f"{work.row.id} is back in {answer['real']} ({what}); {line}"


def proof(plan: Plan, work: RestoreWork, run: Run) -> str:
    """A real answer, and how fast it is."""
    where = endpoint(plan)
    budget = plan.recipe.expect.start_budget_s
    detail = upgrade.answers_within(run, work.node, where, budget)
    return f"backup {work.row.id} serves: {detail}{compared(where, recorded(plan))}"


def returned(run: Run) -> str:
    """What was there before the restore, and why."""
    return give_back(run.state, run.plan, run.id, run.touched, reason=run.failure)
