"""The steps around a swapped library: what is written down about it, and the guard's units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from deploys.common.snapshot_view import files_in, units_in
from operations.change.apply import Steps
from operations.change.steps import folder_steps, unit_step
from operations.engine.engine import file_steps, timer_steps
from schema.desired.plan import Plan
from schema.inputs.cluster_runbook_data import LibvgpuData
from schema.observed.files import FileState
from schema.observed.snapshot import NodeSnapshot
from schema.observed.units import Unit
from schema.render.library_files import FILES, GUARD_PATH, GUARD_TIMER, library_documents


def around(plan: Plan, snapshot: NodeSnapshot, target: str, original: str, ours: str) -> Steps:
    """The state file and the guard: written, started, or taken away."""
    files, units = files_in(snapshot), units_now(snapshot)
    data = plan.chart_as(LibvgpuData)
    documents = library_documents(plan, data, target, original, ours)
    steps = folder_steps(["/etc/rigbook"], files)
    if not data.guard:
        steps += no_guard(files, units)
    changes = [{**step, "sensitive": True} for step in file_steps(documents, files)]
    steps += changes
    if data.guard:
        written = [str(step["path"]) for step in changes]
        for unit in (GUARD_PATH, GUARD_TIMER):
            steps += timer_steps(unit, units.get(unit), written)
    return steps


def no_guard(files: Mapping[str, FileState], units: Mapping[str, Unit]) -> Steps:
    """The steps that end a guard of an earlier run; none where there is none."""
    return guard_away(files, units, FILES)


def guard_away(
    files: Mapping[str, FileState], units: Mapping[str, Unit], paths: Iterable[str]
) -> Steps:
    """The steps that stop these units and remove those of the paths that are units' files."""
    steps: Steps = []
    for name, unit in units.items():
        if unit.active_state == "active" or unit.enabled == "enabled":
            steps.append(unit_step(name, "stop", enabled=False))
    there = [p for p in paths if p.endswith((".service", ".path", ".timer")) and _is_file(files, p)]
    steps += [{"op": "absent", "path": path} for path in there]
    return steps


def _is_file(files: Mapping[str, FileState], path: str) -> bool:
    return path in files and files[path].kind == "file"


def units_now(snapshot: NodeSnapshot) -> dict[str, Unit]:
    """The guard's units that systemd knows; DeployError when they cannot be read."""
    return {n: u for n, u in units_in(snapshot).items() if n in (GUARD_PATH, GUARD_TIMER)}
