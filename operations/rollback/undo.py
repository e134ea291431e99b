"""Operations that undo a change as a whole."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.command import told
from operations.rollback.revert import RecordedChanges, revert_change
from schema.desired.plan import Plan


@operation()
def undo(
    plan: Plan,
    change: str | None,
    nodes: Sequence[str],
    words: Sequence[str],
    overwrite: Collection[str],
    recorded: RecordedChanges | None = None,
) -> Generator[FunctionCommand, None, None]:
    """
    Undo a change on all nodes that have it, and prove the engine that serves again.

    + plan: what the rig is
    + change: the change's id; None when there is nothing to undo
    + nodes: the nodes that have it
    + words: what will be undone, a line each
    + overwrite: files whose later edits may be lost
    + recorded: the change as the nodes have it, where that was asked for beforehand
    """
    if change is None:
        host.noop("no change is open; to undo a blessed one: --data change=ID")
        return

    for line in words:
        host.log(line)
    yield told(
        lambda state, _: revert_change(state, plan, change, nodes, overwrite, recorded=recorded)
    )
