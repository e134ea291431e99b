"""The parser of an engine that has come beside, asked before the former one stops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.run import Run


@operation()
def ask(
    run: Run, nodes: Collection[str], check: Callable[[], str]
) -> Generator[FunctionCommand, None, None]:
    """
    Ask the engine that is to come about the command line that it is to get.

    + run: the change
    + nodes: the nodes to which an engine comes
    + check: asks, and says what came of it, or raises StepFailed
    """
    if host.name not in nodes:
        host.noop("no other engine comes: nothing to ask")
        return
    reporter = host
    run.show_once(host, "preflight", lambda: host.log("ask its own parser about the command line"))
    yield run.step("preflight", nodes, lambda: reporter.log_styled(check(), fg="green"))
