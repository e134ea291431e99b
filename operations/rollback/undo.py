"""Operations that undo a change as a whole."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, State, operation

from operations.change.command import told
from operations.change.node_call import StepFailed
from operations.change.ownership import Ownership
from operations.rollback.revert import revert_change, serves_again
from schema.desired.plan import Plan

# The longest that a rollback waits for another one of the same change: an engine that starts.
OTHER_S = 900.0


@operation()
def undo(
    plan: Plan,
    change: str | None,
    nodes: Sequence[str],
    words: Sequence[str],
    runs: Mapping[str, str | None],
    overwrite: Collection[str],
    forced: bool = False,
    despite: str | None = None,
) -> Generator[FunctionCommand, None, None]:
    """
    Undo a change on all nodes that have it, and prove the engine that serves again.

    + plan: what the rig is
    + change: the change's id; None when there is nothing to undo
    + nodes: the nodes that have it; none: it is undone, and the former engine has yet to answer
    + words: what will be undone, a line each
    + runs: the token of the run that had it, by node
    + overwrite: files whose later edits may be lost
    + forced: it was asked for by id, also where its run may be alive
    + despite: another open change that it may cut across
    """
    if change is None:
        host.noop("no change is open; to undo a blessed one: --data change=ID")
        return

    for line in words:
        host.log(line)
    if not nodes:
        yield told(lambda state, _: serves_again(state, plan, change, {}))
        return

    def work(state: State, _: object) -> str:
        owner = Ownership(state, change, "rollback")
        try:
            told_by = _claim(owner, plan, nodes, runs, forced)
            owner.begin()
            done = {n: row for n, row in told_by.items() if not row["claimed"]}
            left = [n for n in nodes if n not in done]
            if not left:
                by = ", ".join(sorted({row["operator"] for row in done.values()}))
                said = serves_again(state, plan, change, {})
                owner.end(settled=True)
                return f"{by} was faster: {said}"
            recorded = {n: row["state"] for n, row in told_by.items() if row["claimed"]}
            said = revert_change(
                state, plan, change, left, overwrite,
                recorded=recorded, run=owner.token, despite=despite,
            )  # fmt: skip
        except StepFailed:
            owner.end(settled=False)
            raise
        owner.end(settled=True)
        return said

    yield told(work)


def _claim(
    owner: Ownership,
    plan: Plan,
    nodes: Sequence[str],
    runs: Mapping[str, str | None],
    forced: bool,
) -> dict[str, dict[str, Any]]:
    """Makes the change this run's on its nodes, the head first: of two rollbacks at once the second
    waits there. Gives what each node said; one whose line is lost says nothing and keeps no other
    from its undo.
    """
    said = {}
    for node in (each.name for each in plan.rig.nodes if each.name in nodes):
        tell = owner.state.inventory.get_host(node).log
        try:
            said[node] = owner.claim_from_whom_it_has(node, runs.get(node), tell, forced, OTHER_S)
        except StepFailed as error:
            if error.code:
                raise
            tell(str(error))
    return said
