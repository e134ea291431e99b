"""The watch on a node: its files and timer, and its end. The steps are node's, journalled."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.node_call import call
from operations.change.run import Run
from operations.engine.engine import Steps, file_steps, timer_steps
from schema.desired.plan import Document
from schema.observed.snapshot import FileState, Unit
from schema.render.watch_files import WATCH_SERVICE, WATCH_TIMER

# One look of the service: an answer and its notices (its own limit is 120 s).
LOOK_S = 150


def install_steps(
    documents: tuple[Document, ...], files: Mapping[str, FileState], timer: Unit | None
) -> Steps:
    """The steps that make a node watch; none where it watches as the documents say."""
    steps: Steps = [{**step, "sensitive": True} for step in file_steps(documents, files)]
    steps += timer_steps(WATCH_TIMER, timer, [str(step["path"]) for step in steps])
    if steps:
        # One look at once: it proves the configuration, the program and the webhook's file.
        steps.append(_unit(WATCH_SERVICE, "start"))
    return steps


def remove_steps(files: Mapping[str, FileState], timer: Unit | None) -> Steps:
    """The steps that end the watch and take its files away; none where there is none."""
    steps: Steps = []
    if timer is not None and (timer.active_state == "active" or timer.enabled == "enabled"):
        steps.append(_unit(WATCH_TIMER, "stop", enabled=False))
    there = [path for path, state in files.items() if state.kind == "file"]
    steps += [{"op": "absent", "path": path} for path in there]
    if there:
        steps.append(_unit(WATCH_TIMER, None, daemon_reload=True))
    return steps


def _unit(
    name: str, active: str | None, enabled: bool | None = None, daemon_reload: bool = False
) -> dict[str, object]:
    return {
        "op": "unit",
        "unit": name,
        "enabled": enabled,
        "active": active,
        "daemon_reload": daemon_reload,
    }


def describe(step: Mapping[str, object]) -> str:
    """A step in words; a file's content may hold the webhook's URL and is never shown."""
    if step["op"] == "file":
        return f"write {step['path']} (mode {step['mode']}, owner root)"
    if step["op"] == "absent":
        return f"remove {step['path']}"
    enabled = {True: "enable and ", False: "disable and ", None: ""}[step["enabled"]]  # type: ignore[index]
    return f"{enabled}{step['active'] or 'reload'} {step['unit']}"


@operation()
def change(run: Run, steps: Steps, node: str) -> Generator[FunctionCommand, None, None]:
    """
    Install, change or remove the watch on one node.

    + run: the change
    + steps: what to do, from `install_steps` or `remove_steps`
    + node: the node that watches
    """
    if host.name != node or not steps:
        host.noop("the watch is as it should be" if host.name == node else "another node watches")
        return
    for step in steps:
        run.show_once(host, describe(step), lambda step=step: host.log(describe(step)))
    yield run.step("watch", [node], lambda: _apply(run, node, steps))


def _apply(run: Run, node: str, steps: Steps) -> None:
    run.touched.add(node)
    request = {"change": run.change(), "steps": steps}
    # Through stdin: every user of a host can read its command lines.
    call(run.state, run.host(node), "apply", request, LOOK_S)
