"""The watch on a node: its files and timer, and its end. The steps are node's, journalled."""

from __future__ import annotations

from collections.abc import Mapping

from operations.change.apply import Steps
from operations.change.steps import unit_step
from operations.engine.engine import file_steps, timer_steps
from schema.desired.plan import Document
from schema.observed.files import FileState
from schema.observed.units import Unit
from schema.render.watch_files import WATCH_SERVICE, WATCH_TIMER


def install_steps(
    documents: tuple[Document, ...], files: Mapping[str, FileState], timer: Unit | None
) -> Steps:
    """The steps that make a node watch; none where it watches as the documents say."""
    steps: Steps = [{**step, "sensitive": True} for step in file_steps(documents, files)]
    steps += timer_steps(WATCH_TIMER, timer, [str(step["path"]) for step in steps])
    if steps:
        # One look at once: it proves the configuration, the program and the webhook's file.
        steps.append(unit_step(WATCH_SERVICE, "start", reload=False))
    return steps


def remove_steps(files: Mapping[str, FileState], timer: Unit | None) -> Steps:
    """The steps that end the watch and take its files away; none where there is none."""
    steps: Steps = []
    if timer is not None and (timer.active_state == "active" or timer.enabled == "enabled"):
        steps.append(unit_step(WATCH_TIMER, "stop", enabled=False, reload=False))
    there = [path for path, state in files.items() if state.kind == "file"]
    steps += [{"op": "absent", "path": path} for path in there]
    if there:
        steps.append(unit_step(WATCH_TIMER))
    return steps
