"""What the patch deploy has to do, decided once for all hosts, and how it is proven."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyinfra import logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.common.ask_engine import look_at_patches, tool_request, tools_of, venv_of
from deploys.common.load_and_gate import once, stand
from gates.artifact.file_patch_state import PatchState
from gates.artifact.file_patches import findings, unfinished
from operations.change.node_call import StepFailed
from operations.change.apply import Steps
from operations.change.run import Run
from operations.venv.patches import file_step
from schema.desired.plan import Plan

Waivers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PatchWork:
    """The steps on each node, and the patch tools that have something to do; node names in sets."""

    venvs: Mapping[str, str | None]
    states: Mapping[str, tuple[PatchState, ...]]
    steps: Mapping[str, Steps]
    why: Mapping[str, str]
    before: Mapping[str, Mapping[str, str]]
    tools: Mapping[str, frozenset[str]]
    waivers: Waivers
    _run: list[Run] = field(default_factory=list)

    @property
    def to_write(self) -> frozenset[str]:
        """The nodes on which files are to be written."""
        return frozenset(node for node, steps in self.steps.items() if steps)

    @property
    def is_needed(self) -> bool:
        """Whether anything is to do."""
        return bool(self.to_write) or any(self.tools.values())

    def run(self, make: Callable[[], Run]) -> Run:
        """The one change that all hosts of this run share."""
        if not self._run:
            self._run.append(make())
        return self._run[0]


def decide(state: State, plan: Plan, waivers: Waivers) -> PatchWork:
    """The work of this run; DeployError when a file is in no known state."""
    return once("patches", lambda: _decide(state, plan, waivers))


def _decide(state: State, plan: Plan, waivers: Waivers) -> PatchWork:
    if not plan.recipe.file_patches and not tools_of(plan):
        raise DeployError(
            f"recipe {plan.recipe.name} has no file_patches and no patch_tools: nothing to patch "
            "(what an image must carry stands under patches, and is never patched in place)"
        )
    venvs = {node.name: venv_of(plan, node.name) for node in plan.rig.nodes}
    states, answers = look_at_patches(state, plan, venvs)
    found = []
    for node, row in states.items():
        for one in row:
            logger.info(f"    [{node}] {one}")
        found += findings(node, row)
    waived = stand(found)
    files = {
        node: {r["file"]["path"]: r["file"] for r in answer["files"] if r["file"]}
        for node, answer in answers.items()
    }
    to_write = {node: [s for s in row if s.wanted is not None] for node, row in states.items()}
    _refuse_two_of_one_file(to_write)
    return PatchWork(
        venvs,
        states,
        {
            node: [file_step(files[node][s.path], _base64(s)) for s in row]
            for node, row in to_write.items()
        },
        {s.path: f"{s.patch.id} is {s.state}" for row in to_write.values() for s in row},
        {
            node: {s.path: s.content.decode("utf-8", "replace") for s in row}
            for node, row in to_write.items()
        },
        _tools(answers),
        (*waivers, *waived),
    )


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


def _base64(state: PatchState) -> str:
    return base64.b64encode(state.wanted or b"").decode("ascii")


def _tools(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, frozenset[str]]:
    """By tool, the nodes whose tree is not as its last good run left it."""
    found: dict[str, set[str]] = {}
    for node, answer in answers.items():
        for row in answer["tools"]:
            found.setdefault(row["id"], set())
            if not row["done"]:
                found[row["id"]].add(node)
    return {tool: frozenset(nodes) for tool, nodes in found.items()}


def tools_here(plan: Plan, work: PatchWork, node: str) -> list[tuple[dict[str, Any], int]]:
    """Each of the recipe's patch tools as node takes it, with its time limit in seconds."""
    return [(tool_request(t, work.venvs[node]), t.timeout_s) for t in tools_of(plan)]


def in_force(state: State, plan: Plan, work: PatchWork) -> str:
    """A line that says so, after another look; StepFailed names what is not as the recipe knows."""
    try:
        states, answers = look_at_patches(state, plan, work.venvs)
    except DeployError as error:
        raise StepFailed(str(error)) from None
    left = [v for node, row in states.items() for v in unfinished(node, row)]
    undone = sorted(tool for tool, nodes in _tools(answers).items() if nodes)
    if left or undone:
        lines = [f"{v.node}: {v.summary} ({v.evidence})" for v in left]
        lines += [f"the patch tool {tool} has more to do" for tool in undone]
        raise StepFailed("; ".join(lines))
    count = len(plan.recipe.file_patches) + len(tools_of(plan))
    return (
        f"{count} patches in force on {', '.join(states)}; the engine reads them at its next start"
    )
