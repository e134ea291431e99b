"""What a timer of ours starts on a node: its files and timer, and its end; node's steps."""

from __future__ import annotations

from collections.abc import Mapping

from operations.change.apply import Steps
from operations.change.steps import unit_step
from operations.engine.engine import file_steps, timer_steps
from schema.desired.plan import Document
from schema.observed.files import FileState
from schema.observed.units import Unit


def install_steps(
    name: str, documents: tuple[Document, ...], files: Mapping[str, FileState], timer: Unit | None
) -> Steps:
    """The steps that write these files and have the timer `name` run; none where it is all so."""
    steps: Steps = [{**step, "sensitive": True} for step in file_steps(documents, files)]
    return steps + timer_steps(name, timer, [str(step["path"]) for step in steps])


def remove_steps(name: str, files: Mapping[str, FileState], timer: Unit | None) -> Steps:
    """The steps that end the timer and take its files away; none where there is none."""
    steps: Steps = []
    if timer is not None and (timer.active_state == "active" or timer.enabled == "enabled"):
        steps.append(unit_step(name, "stop", enabled=False, reload=False))
    there = [path for path, state in files.items() if state.kind == "file"]
    steps += [{"op": "absent", "path": path} for path in there]
    if there:
        steps.append(unit_step(name))
    return steps
