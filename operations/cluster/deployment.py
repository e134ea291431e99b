"""Variables of a Deployment: one journalled step on the host that has kubectl."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.run import Run
from operations.engine.engine import Steps

# Two reads, a dry run and the patch, each with its own limit.
PATCH_S = 180


@operation()
def patch(run: Run, steps: Steps, tell: Sequence[str]) -> Generator[FunctionCommand, None, None]:
    """
    Set variables of one container of a Deployment.

    + run: the change
    + steps: what to do
    + tell: the same in words, a line each
    """
    if not steps:
        host.noop("the Deployment has these values")
        return
    for line in tell:
        run.show_once(host, line, lambda line=line: host.log(line))
    node = host.name
    yield run.step("kube", [node], lambda: run.apply(node, steps, PATCH_S))
