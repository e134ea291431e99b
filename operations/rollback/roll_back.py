"""Operations on a change as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation

from operations.change.node_call import StepFailed


@operation()
def roll_back(change: str | None, plan: Sequence[str], work: Callable[[], str]):
    """
    Undo a change on all nodes that have it.

    + change: the change's id; None when there is nothing to undo
    + plan: what will be undone, a line each
    + work: does it and gives the line to tell, or raises StepFailed
    """
    if change is None:
        host.noop("no change is open; to undo a blessed one: --data change=ID")
        return

    def execute(state: State, host: Host) -> bool:
        try:
            host.log_styled(work(), fg="green")
        except StepFailed as error:
            for line in str(error).splitlines():
                host.log_styled(line, fg="red")
            return False
        return True

    for line in plan:
        host.log(line)
    yield FunctionCommand(execute, (), {})
