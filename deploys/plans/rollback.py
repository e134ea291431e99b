"""Which change rollback undoes, and how it says so."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.plans.rig import Procedure, refuse_live, rollback
from deploys.plans.rig import endpoint as planned
from facts.endpoint import Endpoint, ask
from facts.node import real
from gates.processes import engine_unit
from operations.engine import NotOurs, ask_ours
from operations.rollback import UP, endpoint_there
from operations.run import deploy_here
from schema.snapshot import ChangeSummary, Journal

# In place of a run's token: the node says whose the change is, before it is taken from anybody.
ASKED_THERE = "?"
# For a real answer of an engine that serves.
ASK_S = 20.0
# Gives the rig back to who served before, at its undo.
TAKES_OVER = "adopt"
_NOT_BLESSED = ("OPEN", "INCONSISTENT")


@dataclass(frozen=True)
class Chosen:
    """The change to undo (id None: nothing to do), the nodes that have it (none: it is undone, and
    the engine that was started again has yet to answer), the plan to show, and whose run's it is
    on each.
    """

    id: str | None
    nodes: tuple[str, ...]
    lines: tuple[str, ...]
    runs: Mapping[str, str | None] = field(default_factory=dict)


def choose(rig: Procedure, wanted: str | None, despite: str | None = None) -> Chosen:
    """The newest change that is not blessed on any node, or the one that was asked for by id.

    DeployError where undoing it would be wrong: it is proven, or another one is at work.
    """
    snapshots = rig.snapshots
    by_node = {
        name: {c.id: c for c in snapshot.journal.changes}
        for name, snapshot in snapshots.items()
        if isinstance(snapshot.journal, Journal)
    }
    known = {id_: change for changes in by_node.values() for id_, change in changes.items()}
    if wanted is not None and wanted not in known:
        raise DeployError(f"no node has a change {wanted!r}; known: {_known(known)}")
    # each node has them in its own order, whatever its clock said; an OPEN one is its newest
    newest = [next((c for c in changes.values() if c.status in _NOT_BLESSED), None)
              for changes in by_node.values()]  # fmt: skip
    found = [(c.status == "OPEN", c.opened_unix_s, c.id) for c in newest if c is not None]
    id_ = wanted or (max(found)[2] if found else None)
    if id_ is None:
        return _undone(rig, max(known.values(), key=lambda c: c.opened_unix_s, default=None))
    nodes = tuple(
        name
        for name, changes in by_node.items()
        if id_ in changes and changes[id_].status != "ROLLED_BACK"
    )
    if not nodes:
        return _undone(rig, known[id_])
    rows = {name: by_node[name][id_] for name in nodes}
    if wanted is None:
        _refuse_proven(rows)
        for name, row in rows.items():
            # the undo waits for a rollback that is under way
            if not _rolls_back(row):
                refuse_live(name, snapshots[name], row)
    _refuse_under_another(rows, by_node, despite)
    lines = tuple(_describe(name, row) for name, row in rows.items())
    runs = {name: ASKED_THERE if _rolls_back(row) else row.run for name, row in rows.items()}
    return Chosen(id_, nodes, lines, runs)


def _undone(rig: Procedure, change: ChangeSummary | None) -> Chosen:
    """Nothing to undo; where the run that undid `change` ended before the former engine answered,
    the answer is still to be waited for.
    """
    if change is None or change.status != "ROLLED_BACK" or rig.plan.runtime == "deployment":
        return Chosen(None, (), ())
    waits = (f"{change.id} is ROLLED_BACK; the engine has not answered yet",)
    if change.deploy == TAKES_OVER:
        answer = ask(planned(rig.plan), ASK_S)
        loads = _closed_lately(rig, change) and not (answer.ok or answer.alive)
        return Chosen(change.id, (), waits) if loads else Chosen(None, (), ())
    units = [engine_unit(snapshot) for snapshot in rig.snapshots.values()]
    if not all(unit and unit.active_state in UP for unit in units):
        return Chosen(None, (), ())
    endpoint = endpoint_there(rig.plan, rig.snapshots[rig.plan.rig.head.name])
    if endpoint is None or _answers(rig, endpoint):
        return Chosen(None, (), ())
    return Chosen(change.id, (), waits)


def _answers(rig: Procedure, endpoint: Endpoint) -> bool:
    """Whether our own engine answers, this machine or its own host."""
    head, nodes = rig.plan.rig.head.name, [node.name for node in rig.plan.rig.nodes]
    try:
        return ask_ours(
            real(state), head, nodes, endpoint, lambda where: ask(where, ASK_S), ASK_S
        ).ok
    except NotOurs:
        return False


def _closed_lately(rig: Procedure, change: ChangeSummary) -> bool:
    """Whether an engine that was started at the change's end may still load: one that is no unit of
    ours does not tell.
    """
    now = rig.snapshots[rig.plan.rig.head.name].identity.clock_unix_s
    return now - (change.closed_unix_s or 0.0) < rig.plan.recipe.expect.start_budget_s


def _rolls_back(change: ChangeSummary) -> bool:
    """Whether a rollback took it up, which may be alive, or one of this machine is about to."""
    taken = change.taken_by is not None and change.taken_by.deploy == "rollback"
    return taken or deploy_here(change.id) == "rollback"


def _refuse_proven(rows: Mapping[str, ChangeSummary]) -> None:
    """DeployError for a change that a node has as COMMITTED: only the others' journals are open."""
    proven = [name for name, row in rows.items() if row.status == "COMMITTED"]
    left = [name for name, row in rows.items() if row.status == "OPEN"]
    if not proven or not left:
        return
    change = rows[left[0]]
    again = f"pyinfra INVENTORY {shlex.quote(f'deploys/{change.deploy}.py')} -y"
    body = {"change": change.id, "status": "COMMITTED", "reason": f"proven on {proven[0]}"}
    raise DeployError(
        f"nothing was changed: change {change.id} is COMMITTED on {', '.join(proven)}, where it "
        f"was proven, and OPEN on {', '.join(left)}: what serves is good. Close it there: "
        f"sudo rignode close {shlex.quote(json.dumps(body))} (or run {again} "
        f"again: it does so); to undo it on all nodes: {rollback(change.id)}"
    )


def _refuse_under_another(
    rows: Mapping[str, ChangeSummary],
    by_node: Mapping[str, Mapping[str, ChangeSummary]],
    despite: str | None,
) -> None:
    """DeployError where another change is open on any node, whose run is about to prove an engine
    (node's undo refuses it, too, but only there, and once the engine has been stopped).
    """
    row = next(iter(rows.values()))
    for node, other in ((name, c) for name, changes in by_node.items() for c in changes.values()):
        newer = row.status == "COMMITTED" or other.opened_unix_s > row.opened_unix_s
        if other.status != "OPEN" or other.id in (row.id, despite) or not newer:
            continue
        raise DeployError(
            f"nothing was changed: change {other.id} ({other.deploy}) of {other.owner} is OPEN on "
            f"{node}: to undo {row.id} would cut across it; wait for it, or undo it first: "
            f"{rollback(other.id)}; or, in spite of it: {rollback(row.id)} "
            f"--data despite={other.id}"
        )


def _known(changes: Mapping[str, ChangeSummary]) -> str:
    newest = sorted(changes.values(), key=lambda c: c.opened_unix_s, reverse=True)[:5]
    return ", ".join(f"{c.id} ({c.status})" for c in newest) or "none"


def _describe(node: str, change: ChangeSummary) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(change.opened_unix_s))
    steps = "; ".join(change.steps) or "no steps"
    return f"{node}: undo {change.id} ({change.status}, {when}, {change.operator}): {steps}"
