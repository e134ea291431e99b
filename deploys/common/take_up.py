"""A change that a dead run left open: the same command, run again, takes it up (docs/adr/0022)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError
from pyinfra.context import ctx_state

from deploys.common.load_and_gate import dry_run, gate_here, inventory_name
from facts.observe import forget
from facts.rignode.context import real
from gates.core.check import Observed
from gates.gate_sets import REACHING, check
from gates.host.storage import EACH_NODE, GOES_ON, UNDOES_FIRST, seconds_since_last_sign
from operations.change.node_call import StepFailed, call
from operations.change.ownership import Ownership, proven_dead
from operations.rollback.revert import RESTORE_TIMEOUT_S, undone
from schema.desired.plan import UNIT, Plan
from schema.observed.files import ChangeSummary, Journal
from schema.observed.snapshot import NodeSnapshot

# Units that these runs start themselves, with other files: the former engine is not started for it.
_STAY_DOWN = {"serve": (UNIT,), "upgrade": (UNIT,)}


@dataclass(frozen=True)
class Closed:
    """A node where a change that is open elsewhere is closed: COMMITTED or ROLLED_BACK."""

    node: str
    status: str


@dataclass(frozen=True)
class TakenUp:
    """A change that this run goes on in, and what its first run kept beside the steps."""

    owner: Ownership
    context: Mapping[str, Any]


def take_up(
    deploy: str, plan: Plan, look: Callable[[], Observed]
) -> tuple[Observed, TakenUp | None]:
    """What `look` sees, once a dead run's change of this runbook is this run's: it is not among the
    changes any more. None: there is none, or it is closed by now. DeployError: its run may be
    alive, or it is not to be taken up here.
    """
    seen = look()
    found = _left_open(deploy, seen)
    if not found:
        return seen, None
    change = next(iter(found.values()))
    for node, row in found.items():
        refuse_live(node, seen[node], row)
    closed = None if deploy in EACH_NODE else _elsewhere(seen, change, next(iter(found)))
    undoes = deploy in UNDOES_FIRST
    line = _line(change, found, undoes, closed)
    if dry_run():
        logger.info(f"    would first: {line}; what follows is planned on what lies there now")
        return _without(seen, change.id), None
    gate_here(check(plan, seen, REACHING))
    _confirm(line)
    logger.info(f"    {line}")
    owner = Ownership(state, change.id, deploy)
    context: dict[str, Any] = {}
    try:
        nodes = [node.name for node in plan.rig.nodes if node.name in found]
        for node in nodes:
            if closed is not None and closed.status == "ROLLED_BACK":
                _went_back_too(owner, node, found[node].run, closed.node)
            elif closed is None or not _closed(node, change.id, closed.node):
                context.update(_claimed(owner, node, found[node].run, undoes))
    except StepFailed as error:
        owner.end(settled=False)
        raise DeployError(f"change {change.id} was not taken up: {error}") from None
    forget(state)
    seen = look()
    if closed is not None and closed.status == "ROLLED_BACK":
        owner.end(settled=True)
        return seen, None
    if not owner.nodes:
        return seen, None
    owner.begin()
    return _without(seen, change.id), TakenUp(owner, context)


def _left_open(deploy: str, seen: Observed) -> dict[str, ChangeSummary]:
    """The newest open change of this runbook, by node; empty where it takes none up."""
    if deploy not in (*GOES_ON, *UNDOES_FIRST):
        return {}
    rows = [
        (name, change)
        for name, snapshot in seen.items()
        for change in changes_of(snapshot)
        if (change.status, change.deploy) == ("OPEN", deploy)
    ]
    newest = max((change for _, change in rows), default=None, key=lambda c: c.opened_unix_s)
    return {name: change for name, change in rows if newest and change.id == newest.id}


def refuse_live(node: str, snapshot: object, change: ChangeSummary) -> None:
    """DeployError when the run that has the change may be alive."""
    assert isinstance(snapshot, NodeSnapshot)
    quiet = seconds_since_last_sign(change, snapshot)
    by = change.owner
    if quiet is None or change.status != "OPEN" or proven_dead(change.id, by):
        return
    raise DeployError(
        f"nothing was changed: {by} may still be at work on {node}: change {change.id}, last sign "
        f"of life {quiet:.0f} s ago; wait for it, or, if that run is dead: {rollback(change.id)}"
    )


def _elsewhere(seen: Observed, change: ChangeSummary, node: str) -> Closed | None:
    """Where the change is closed already: COMMITTED, so it was proven and is only to be closed on
    the others; or ROLLED_BACK, so it goes back on them too: node takes no step of a closed change.

    DeployError where it is INCONSISTENT.
    """
    for other, snapshot in seen.items():
        for row in changes_of(snapshot):
            if row.id != change.id or row.status == "OPEN":
                continue
            if row.status != "INCONSISTENT":
                return Closed(other, row.status)
            raise DeployError(
                f"nothing was changed: change {change.id} is OPEN on {node} and {row.status} on "
                f"{other}; undo the rest of it: {rollback(change.id)}"
            )
    return None


def _line(
    change: ChangeSummary,
    found: Mapping[str, ChangeSummary],
    undoes: bool,
    closed: Closed | None,
) -> str:
    where = ", ".join(found)
    if closed is not None and closed.status == "ROLLED_BACK":
        back = f"change {change.id} went back on {closed.node} and is open on {where}"
        return f"{back}: undoes it there, too"
    if closed is not None:
        return f"change {change.id} is proven on {closed.node} and open on {where}: closes it there"
    what = "undoes what is half done, and goes on in it" if undoes else "goes on in it"
    return f"takes up change {change.id}, left open on {where} by {change.owner}: {what}"


def _confirm(line: str) -> None:
    """DeployError unless the person agrees, where there is one: pyinfra asks only later."""
    if not ctx_state.get().__dict__.get("rigbook_asks"):
        return
    if not click.confirm(f"    {line}; now?", default=True, err=True):
        raise DeployError("nothing was changed: the change was not taken up")


def _closed(node: str, change: str, proven: str) -> bool:
    """Closes a proven change on a node; False where steps are missing there."""
    request = {"change": change, "status": "COMMITTED", "reason": f"proven on {proven}"}
    try:
        call(real(state), real(state).inventory.get_host(node), "close", request)
    except StepFailed as error:
        if error.code != "unfinished":
            raise
        return False
    return True


def _went_back_too(owner: Ownership, node: str, former: str | None, other: str) -> None:
    """Undoes on a node what is undone on `other` already; StepFailed where it is not whole."""
    _claimed(owner, node, former, undoes=False)
    reason = f"went back on {other}, and by the same command again here"
    request = {"change": owner.change, "run": owner.token, "reason": reason}
    undone(owner.state, [node], request, RESTORE_TIMEOUT_S)


def _claimed(owner: Ownership, node: str, former: str | None, undoes: bool) -> Mapping[str, Any]:
    """What the change's first run kept; StepFailed when somebody else has it by now."""
    timeout_s = RESTORE_TIMEOUT_S if undoes else 120
    tell = owner.state.inventory.get_host(node).log
    answer = owner.claim(node, former, tell, undoes, _STAY_DOWN.get(owner.deploy, ()), timeout_s)
    if not answer["claimed"]:
        raise StepFailed(
            f"{node}: it is {answer['operator']}'s ({answer['deploy']}) by now, and "
            f"{answer['status']}"
        )
    return answer["state"].get("blob") or {}


def _without(seen: Observed, change: str) -> Observed:
    """The observation without this change, which is this run's own."""
    found = dict(seen)
    for name, snapshot in seen.items():
        if isinstance(snapshot, NodeSnapshot) and isinstance(snapshot.journal, Journal):
            rows = tuple(row for row in snapshot.journal.changes if row.id != change)
            journal = snapshot.journal.model_copy(update={"changes": rows})
            found[name] = snapshot.model_copy(update={"journal": journal})
    return found


def rollback(change: str) -> str:
    """The command that undoes a change, with the inventory that the operator typed."""
    return f"pyinfra {inventory_name()} deploys/rollback.py -y --data change={change}"


def changes_of(snapshot: object) -> tuple[ChangeSummary, ...]:
    """The changes of a node's journal; none where it did not tell."""
    journal = getattr(snapshot, "journal", None)
    return journal.changes if isinstance(journal, Journal) else ()
