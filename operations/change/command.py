"""What one host does by itself, beside a rig's change: a command that says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State

from operations.change.node_call import StepFailed
from operations.change.run import Run


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
            lines = str(error).splitlines()
            state.__dict__.setdefault("rigbook_last_words", []).append(lines[0] if lines else "")
            for line in lines:
                host.log_styled(line, fg="red")
            for line in causes(host):
                host.log_styled(line, fg="yellow")
            return False
        return True

    return FunctionCommand(execute, (), {})


def told_together(
    run: Run,
    label: str,
    members: Collection[str],
    work: Callable[[State, Host], str],
    wait_s: float,
) -> FunctionCommand:
    """The same as a step that `members` do at the same time: one that fails ends the run on all."""
    me = run.host(host.name)
    return run.step(label, members, lambda: me.log_styled(work(run.state, me), fg="green"), wait_s)
