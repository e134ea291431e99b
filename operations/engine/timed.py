"""What a timer of ours starts on a node: its files and timer, its end, and the proof of both."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra.api import State

from facts import unit_state
from facts.rignode.context import fact_of
from operations.change.apply import Steps
from operations.change.node_call import StepFailed
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


def prove_timer(state: State, node: str, name: str, runs: bool) -> str:
    """The timer's state as systemd says it; StepFailed where it runs and is not to, or the other
    way round.
    """
    seen = fact_of(state, state.inventory.get_host(node), unit_state.Unit, name)
    if seen is None or (seen.active == "active") is not runs:
        raise StepFailed(f"{node}: {name} is {seen.active if seen else 'unknown'}")
    return str(seen.active)
