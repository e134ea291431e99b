"""Which change rollback undoes, and how it says so."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once_a_run, operator_data
from deploys.common.procedure import Procedure
from deploys.common.resume import refuse_live
from operations.rollback.revert import RecordedChanges
from schema.desired.plan import Plan
from schema.inputs.runbook_data import RollbackData
from schema.observed.files import ChangeSummary, Journal

_NOT_BLESSED = ("OPEN", "INCONSISTENT")


@dataclass(frozen=True)
class Chosen:
    """The change to undo (id None: nothing to do), the nodes that have it, and the plan to show."""

    id: str | None
    nodes: tuple[str, ...]
    lines: tuple[str, ...]


@once_a_run
def ask_journals(plan: Plan) -> RecordedChanges:
    """Asks for the changes while the gates do: every second counts for who is down."""
    return RecordedChanges(state, plan, operator_data(RollbackData).change)


def choose(rig: Procedure, wanted: str | None) -> Chosen:
    """The newest change that is not blessed on any node, or the one that was asked for by id."""
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
        return Chosen(None, (), ())
    nodes = tuple(
        name
        for name, changes in by_node.items()
        if id_ in changes and changes[id_].status != "ROLLED_BACK"
    )
    if not nodes:
        return Chosen(None, (), ())
    if wanted is None:
        for name in nodes:
            refuse_live(name, snapshots[name], by_node[name][id_])
    return Chosen(id_, nodes, tuple(_describe(name, by_node[name][id_]) for name in nodes))


def _known(changes: Mapping[str, ChangeSummary]) -> str:
    newest = sorted(changes.values(), key=lambda c: c.opened_unix_s, reverse=True)[:5]
    return ", ".join(f"{c.id} ({c.status})" for c in newest) or "none"


def _describe(node: str, change: ChangeSummary) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(change.opened_unix_s))
    steps = "; ".join(change.steps) or "no steps"
    return f"{node}: undo {change.id} ({change.status}, {when}, {change.operator}): {steps}"
