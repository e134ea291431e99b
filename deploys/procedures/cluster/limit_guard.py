"""The steps of the guard beside a limit: the values written down, its units started or ended."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra.api.exceptions import DeployError

from deploys.common.snapshot_view import files_in, units_in
from deploys.procedures.cluster.libvgpu_guard import guard_away
from operations.change.apply import Steps
from operations.change.steps import folder_steps
from operations.engine.engine import file_steps, timer_steps
from schema.desired.plan import Plan
from schema.inputs.cluster_runbook_data import GpuLimitData
from schema.observed.kube import KubeLook
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.render.limit_files import FILES, GUARD_TIMER, STATE_PATH, limit_documents


def around(
    plan: Plan, snapshot: NodeSnapshot, now: KubeLook, values: Mapping[str, str],
    edits: Mapping[str, str],
) -> Steps:  # fmt: skip
    """With `guard`: what is guarded already in this container, and these values; else none is.

    DeployError when what is guarded cannot be read.
    """
    data, files = plan.chart_as(GpuLimitData), files_in(snapshot)
    units = {name: unit for name, unit in units_in(snapshot).items() if name == GUARD_TIMER}
    if not data.guard:
        steps = guard_away(files, units, FILES)
        if STATE_PATH in files and files[STATE_PATH].kind == "file":
            steps.append({"op": "absent", "path": STATE_PATH})
        return steps
    if isinstance(now.guard, Unreadable):
        raise DeployError(
            f"{now.guard.unreadable}; run it without guard=true, which takes the guard away, then "
            "with it"
        )
    same = now.guard if now.guard and now.guard.container == now.container else None
    every = {**same.values, **values} if same else values
    texts = _edits(same.edits, edits) if same else edits
    documents = limit_documents(plan, data, now.container, every, texts)
    steps = folder_steps(["/etc/rigbook"], files)
    changes = [{**step, "sensitive": True} for step in file_steps(documents, files)]
    written = [str(step["path"]) for step in changes]
    return [*steps, *changes, *timer_steps(GUARD_TIMER, units.get(GUARD_TIMER), written)]


def _edits(known: Mapping[str, str], edits: Mapping[str, str]) -> dict[str, str]:
    """What a chart that is deployed again would bring, each with what is to stand there: an edit of
    what an earlier one left goes from the chart's own text.
    """
    found = {old: edits.get(new, new) for old, new in known.items()}
    found.update({old: new for old, new in edits.items() if old not in known.values()})
    return {old: new for old, new in found.items() if old != new}
