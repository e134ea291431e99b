"""The recipe's patches in a version that nothing leads to yet."""

from __future__ import annotations

import base64

from pyinfra.api.exceptions import DeployError

from deploys.common.ask_engine import look_at_patches, tool_request, tools_of
from gates.artifact.file_patches import findings, unfinished
from gates.core.violation import Violation
from gates.core.waiver import blocking
from operations.change.node_call import StepFailed, call
from operations.venv.patches import file_step, told
from operations.change.run import Run
from schema.desired.plan import Plan


def patch_into(plan: Plan, run: Run, node: str, venv: str) -> str:
    """Brings every patch of the recipe into force in `venv`, journalled; the line to tell.

    StepFailed for a file that is in no known state, and for a tool that fails.
    """
    count = len(plan.recipe.file_patches) + len(tools_of(plan))
    if not count:
        return "the recipe has no patches"
    try:
        states, answers = look_at_patches(run.state, plan, {node: venv})
    except DeployError as error:
        raise StepFailed(str(error)) from None
    _stop_at(findings(node, states[node]))
    files = {row["file"]["path"]: row["file"] for row in answers[node]["files"] if row["file"]}
    steps = [
        file_step(files[one.path], base64.b64encode(one.wanted).decode("ascii"))
        for one in states[node]
        if one.wanted is not None
    ]
    if steps:
        run.apply(node, steps)
    lines = []
    for tool in tools_of(plan):
        run.touched.add(node)
        request = {"change": run.change(), "tool": tool_request(tool, venv)}
        answer = call(run.state, run.host(node), "patch tool", request, tool.timeout_s + 60)
        lines.append(told(tool.id, answer))
    try:
        after, _ = look_at_patches(run.state, plan, {node: venv})
    except DeployError as error:
        raise StepFailed(str(error)) from None
    _stop_at(unfinished(node, after[node]))
    return "; ".join([f"{count} patches in force in {venv}", *lines])


def _stop_at(found: list[Violation]) -> None:
    stops = blocking(found)
    if stops:
        raise StepFailed("; ".join(f"{v.code}: {v.summary} ({v.evidence})" for v in stops))
