"""What one host does by itself, beside a rig's change: a command that says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyinfra.api import FunctionCommand, Host, State

from operations.change.node_call import StepFailed


def told(
    work: Callable[[State, Host], str], causes: Callable[[Host], Sequence[str]] = lambda _: ()
) -> FunctionCommand:
    """The command that does `work` and says its line; a StepFailed fails the host with its lines,
    and with what `causes` says to look at.
    """

    def execute(state: State, host: Host) -> bool:
        try:
            host.log_styled(work(state, host), fg="green")
        except StepFailed as error:
            for line in str(error).splitlines():
                host.log_styled(line, fg="red")
            for line in causes(host):
                host.log_styled(line, fg="yellow")
            return False
        return True

    return FunctionCommand(execute, (), {})
