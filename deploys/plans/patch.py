"""What of the recipe's patches is to be brought into force: where the engine is, or beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.plans.engine import look_at_patches, tool_request, venv_of
from deploys.plans.rig import Procedure, gate_here, once_a_run
from gates.core import blocking
from gates.patches import PatchState, findings, unfinished
from operations.apply import Steps
from operations.run import StepFailed
from operations.venv import PatchSteps, file_step
from schema.plan import Plan

Answers = Mapping[str, Mapping[str, Any]]
States = Mapping[str, tuple[PatchState, ...]]


@dataclass(frozen=True)
class PatchWork:
    """The steps on each node, and the patch tools that have something to do; node names in sets."""

    venvs: Mapping[str, str | None]
    steps: Mapping[str, Steps]
    why: Mapping[str, str]
    before: Mapping[str, Mapping[str, str]]
    tools: Mapping[str, frozenset[str]]

    @property
    def to_write(self) -> frozenset[str]:
        """The nodes on which files are to be written."""
        return frozenset(node for node, steps in self.steps.items() if steps)

    @property
    def is_needed(self) -> bool:
        """Whether anything is to do."""
        return bool(self.to_write) or any(self.tools.values())


def count(plan: Plan) -> int:
    """How many patches and patch tools the recipe has."""
    return len(plan.recipe.file_patches) + len(plan.recipe.patch_tools)


@once_a_run
def plan(rig: Procedure) -> PatchWork:
    """The work of this run; DeployError when a file is in no known state."""
    if not count(rig.plan):
        raise DeployError(
            f"recipe {rig.plan.recipe.name} has no file_patches and no patch_tools: nothing to "
            "patch (what an image must carry stands under patches, and is never patched in place)"
        )
    venvs = {node.name: venv_of(rig.plan, node.name) for node in rig.plan.rig.nodes}
    states, answers = look_at_patches(rig.run.state, rig.plan, venvs)
    found = []
    for node, row in states.items():
        for one in row:
            logger.info(f"    [{node}] {one}")
        found += findings(node, row)
    rig.run.waivers = (*rig.waivers, *gate_here(found))
    to_write = {node: [s for s in row if s.wanted is not None] for node, row in states.items()}
    _refuse_two_of_one_file(to_write)
    return PatchWork(
        venvs,
        _steps(states, answers),
        {s.path: f"{s.patch.id} is {s.state}" for row in to_write.values() for s in row},
        {
            node: {s.path: s.content.decode("utf-8", "replace") for s in row}
            for node, row in to_write.items()
        },
        _tools(answers),
    )


def _steps(states: States, answers: Answers) -> dict[str, Steps]:
    """By node, the steps that give each file what its patch wants."""
    files = {
        node: {r["file"]["path"]: r["file"] for r in answer["files"] if r["file"]}
        for node, answer in answers.items()
    }
    return {
        node: [
            file_step(files[node][s.path], base64.b64encode(s.wanted).decode("ascii"))
            for s in row
            if s.wanted is not None
        ]
        for node, row in states.items()
    }


def _refuse_two_of_one_file(to_write: Mapping[str, list[PatchState]]) -> None:
    """Two patches of one file at once: each would write the file without the other."""
    for node, row in to_write.items():
        for one in row:
            others = [s.patch.id for s in row if s.path == one.path]
            if len(others) > 1:
                raise DeployError(
                    f"{node}: {', '.join(others)} both patch {one.path}; make one patch of them in "
                    "the recipe's file_patches"
                )


def _tools(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, frozenset[str]]:
    """By tool, the nodes whose tree is not as its last good run left it."""
    found: dict[str, set[str]] = {}
    for node, answer in answers.items():
        for row in answer["tools"]:
            found.setdefault(row["id"], set())
            if not row["done"]:
                found[row["id"]].add(node)
    return {tool: frozenset(nodes) for tool, nodes in found.items()}


def tools_for(plan: Plan, node: str, venv: str | None) -> list[tuple[dict[str, Any], int]]:
    """Each of the recipe's patch tools as a node takes it, with its time limit in seconds."""
    return [(tool_request(plan, t, node, venv), t.timeout_s) for t in plan.recipe.patch_tools]


def inspect_beside(state: State, plan: Plan, node: str, venv: str) -> PatchSteps:
    """What a version lacks to which nothing leads yet; StepFailed for a file in no known state."""
    states, answers = _look(state, plan, {node: venv})
    stops = blocking(findings(node, states[node]))
    if stops:
        raise StepFailed("; ".join(f"{v.code}: {v.summary} ({v.evidence})" for v in stops))
    return PatchSteps(_steps(states, answers)[node], tools_for(plan, node, venv))


def verify(state: State, plan: Plan, venvs: Mapping[str, str | None], where: str) -> str:
    """A line that says that all is in force `where`; StepFailed names what is not."""
    states, answers = _look(state, plan, venvs)
    left = [v for node, row in states.items() for v in unfinished(node, row)]
    undone = sorted(tool for tool, nodes in _tools(answers).items() if nodes)
    if left or undone:
        lines = [f"{v.node}: {v.summary} ({v.evidence})" for v in left]
        lines += [f"the patch tool {tool} has more to do" for tool in undone]
        raise StepFailed("; ".join(lines))
    return f"{count(plan)} patches in force {where}"


def _look(state: State, plan: Plan, venvs: Mapping[str, str | None]) -> tuple[States, Answers]:
    try:
        return look_at_patches(state, plan, venvs)
    except DeployError as error:
        raise StepFailed(str(error)) from None
