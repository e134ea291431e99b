"""A step of a run on one host; rollback's restore is its last user."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.run import Run


@operation()
def task(
    run: Run, label: str, plan: Sequence[str], work: Callable[[], str], idle: str
) -> Generator[FunctionCommand, None, None]:
    """
    One step of a run on this host; its failure ends the run and brings the rig back.

    + run: the change
    + label: the step's name
    + plan: what it will do, a line each; nothing is done without one
    + work: does it and gives the line to tell (or nothing), or raises StepFailed
    + idle: why nothing is to do
    """
    if not plan:
        host.noop(idle)
        return
    reporter = host
    for line in plan:
        run.show_once(host, line, partial(host.log, line))

    def execute() -> None:
        line = work()
        if line:
            reporter.log_styled(line, fg="green")

    yield run.step(label, [host.name], execute)
