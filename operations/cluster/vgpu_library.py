"""The swapped library on a host: the steps are node's, journalled, and undone together."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.run import Run
from operations.engine.engine import Steps

# A library of some MB over a slow line, and the units' start.
SWAP_S = 300


@operation()
def swap(run: Run, steps: Steps, tell: Sequence[str]) -> Generator[FunctionCommand, None, None]:
    """
    Put a library, its state file and the guard's units in place, as one journalled change.

    + run: the change
    + steps: what to do, in order
    + tell: the same in words, a line each
    """
    if not steps:
        host.noop("the library is as it should be")
        return
    for line in tell:
        run.show_once(host, line, lambda line=line: host.log(line))
    node = host.name
    yield run.step("library", [node], lambda: run.apply(node, steps, SWAP_S))


def describe(step: Mapping[str, object]) -> str:
    """A step in words; contents are never shown: a library is no text, a state may hold a URL."""
    if step["op"] == "file":
        return f"write {step['path']} (mode {step['mode']}, owner {step.get('owner', 'root')})"
    if step["op"] == "absent":
        return f"remove {step['path']}"
    if step["op"] == "directory":
        return f"make the folder {step['path']}"
    enabled = {True: "enable and ", False: "disable and ", None: ""}[step["enabled"]]  # type: ignore[index]
    return f"{enabled}{step['active'] or 'reload'} {step['unit']}"
