"""The look between the former engine's end and the start of ours."""

from __future__ import annotations

from collections.abc import Callable, Generator

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.run import Run


@operation()
def require_room(
    run: Run, needed: bool, check: Callable[[], str]
) -> Generator[FunctionCommand, None, None]:
    """
    Have our engine started only where the former one has left what it needs.

    + run: the change
    + needed: whether a former engine was ended
    + check: looks and says so, or raises StepFailed
    """
    if not needed:
        host.noop("no former engine was ended")
        return
    reporter = host
    run.show_once(host, "room", lambda: host.log("wait until port and memory are free"))
    yield run.step("room", [host.name], lambda: reporter.log(check()))
