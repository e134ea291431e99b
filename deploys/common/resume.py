"""A change that a killed run left open: whether this run may take it up, or undo it."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import inventory_name
from gates.host.storage import seconds_since_last_step
from operations.change.run import operator
from schema.observed.files import ChangeSummary, Journal
from schema.observed.snapshot import NodeSnapshot


def unfinished(snapshots: Mapping[str, NodeSnapshot], deploy: str) -> str | None:
    """The id of a run of `deploy` that was cut off, for this run to take up; None: there is none.

    DeployError when another operator may still be at it, and when a node has closed it: node takes
    no step of a closed change, and the head would stay stopped.
    """
    for name, snapshot in snapshots.items():
        for change in _changes(snapshot):
            if (change.status, change.deploy) != ("OPEN", deploy):
                continue
            refuse_live(name, snapshot, change)
            _refuse_closed_elsewhere(snapshots, name, change)
            return change.id
    return None


def refuse_live(node: str, snapshot: NodeSnapshot, change: ChangeSummary) -> None:
    """DeployError when the run that opened the change is another operator's and may be alive."""
    quiet = seconds_since_last_step(change, snapshot)
    if quiet is None or change.status != "OPEN" or change.operator == operator():
        return
    raise DeployError(
        f"nothing was changed: {change.operator} may still be at work on {node}: change "
        f"{change.id}, last step {quiet:.0f} s ago; wait for it, or, if that run is dead: "
        f"{_rollback(change)}"
    )


def _refuse_closed_elsewhere(
    snapshots: Mapping[str, NodeSnapshot], node: str, change: ChangeSummary
) -> None:
    for other, snapshot in snapshots.items():
        status = next((c.status for c in _changes(snapshot) if c.id == change.id), "OPEN")
        if status == "OPEN":
            continue
        mend = (
            f"it was proven, and only this journal is still open; on {node}: sudo rignode close "
            f'\'{{"change": "{change.id}", "status": "COMMITTED", "reason": "proven"}}\''
            if status == "COMMITTED"
            else f"undo the rest of it: {_rollback(change)}"
        )
        raise DeployError(
            f"nothing was changed: change {change.id} is OPEN on {node} and {status} on {other}; "
            + mend
        )


def _rollback(change: ChangeSummary) -> str:
    """The command that undoes a change, with the inventory that the operator typed."""
    return f"pyinfra {inventory_name()} deploys/rollback.py -y --data change={change.id}"


def _changes(snapshot: NodeSnapshot) -> tuple[ChangeSummary, ...]:
    return snapshot.journal.changes if isinstance(snapshot.journal, Journal) else ()
