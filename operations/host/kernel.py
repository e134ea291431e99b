"""The kernel of a node: its pin, and what is shown before it is made. The steps are node's."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change import diff
from operations.change.run import Run
from operations.engine.engine import Steps
from schema.observed.snapshot import FileState

# update-grub looks at each kernel, and asks every filesystem; big machines take a minute.
PIN_TIMEOUT_S = 420


def describe(step: Mapping[str, object]) -> str:
    """A step in words."""
    if step["op"] == "file":
        return f"write {step['path']} (mode {step['mode']}, owner root)"
    if step["op"] in ("directory", "absent"):
        return f"{'make' if step['op'] == 'directory' else 'remove'} {step['path']}"
    if step["op"] == "hold":
        return f"apt holds: {', '.join(map(str, step['packages']))}"  # type: ignore[call-overload]
    if step["op"] == "grub":
        made = "update-grub; " if step.get("regenerate") else ""
        if step.get("next"):
            return f"GRUB boots {step['next']} once"
        return f"{made}GRUB's saved default is {step['saved']}"
    enabled = {True: "enable and ", False: "disable and ", None: ""}[step["enabled"]]  # type: ignore[index]
    return f"{enabled}{step['active'] or 'reload'} {step['unit']}"


@operation()
def change(
    run: Run,
    label: str,
    steps: Steps,
    members: Collection[str],
    files: Mapping[str, FileState],
    words: Sequence[str] = (),
) -> Generator[FunctionCommand, None, None]:
    """
    Make a kernel's steps on this node, when it is one of `members`.

    + run: the change
    + label: names the step for the other nodes
    + steps: what to do, in order
    + members: the nodes on which something is to do
    + files: what the files are now, by path, for the diff
    + words: what changes, for a person
    """
    if host.name not in members or not steps:
        host.noop(words[0] if words and not members else "nothing to do here in this step")
        return
    for line in words:
        run.show_once(host, line, lambda line=line: host.log(line))
    for step in steps:
        run.show_once(host, describe(step), lambda step=step: _show(run, step, files))
    node = host.name
    yield run.step(label, members, lambda: run.apply(node, steps, PIN_TIMEOUT_S))


def _show(run: Run, step: Mapping[str, object], files: Mapping[str, FileState]) -> None:
    host.log(describe(step))
    if step["op"] == "file" and run.state.config.DIFF:
        path = str(step["path"])
        now = files.get(path)
        diff.show(host, path, now.content if now else None, str(step["content"]))
