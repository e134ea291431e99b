"""What a rig's hosts know of their engine before it is touched: pip's plan, patches, provenance.

Each asks all nodes at the same time, read-only; DeployError names the nodes that did not answer.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import gevent
from pydantic import ValidationError
from pyinfra import host, logger
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.common.known_bad import known
from deploys.common.load_and_gate import data_of, operator_data
from facts.local.git_apply import apply
from facts.rignode.call import AskFailed, ask_node
from facts.rignode.context import real
from gates.artifact.compatibility import compatibility
from gates.artifact.file_patch_state import PatchState, judge
from gates.core.check import Observed
from gates.core.violation import Violation
from schema.core.parse import misfit
from schema.desired.plan import Plan
from schema.observed.artifact import (
    LIBRARIES,
    METADATA,
    VENV_LIBRARIES,
    ArtifactAnswer,
    ArtifactProbe,
    probes,
)
from schema.observed.pip_report import VenvWheels
from schema.recipe.patches import PatchTool
from schema.recipe.wheels import WheelsSpec

# pip may have to fetch a whole wheel for its metadata; the driver's libraries are 250 MB each.
PIP_TIMEOUT_S = 900
LOOK_TIMEOUT_S = 180


def venv_of(plan: Plan, node: str) -> str | None:
    """The folder of a node's venv: `venv` of the host's data, else the recipe's; None: an image.

    --data has it for patch and provenance alone, inventory and group_data for every runbook.
    """
    operator_data()  # checks it
    found = data_of(host)[0].get("venv") or plan.specs[node].venv
    return str(found) if found else None


def pip_args(plan: Plan) -> list[str]:
    """What the recipe's venv tells pip besides the rig's own configuration."""
    venv = plan.recipe.venv
    if venv is None:
        return []
    links = ["--no-index", f"--find-links={venv.wheels}"] if venv.wheels else []
    return [*links, *venv.pip_args]


def wheels_spec(plan: Plan) -> WheelsSpec:
    """The recipe's `wheels`, or what holds without it."""
    return plan.recipe.wheels or WheelsSpec()


def known_versions(wanted: str, plan: Plan, observed: Observed) -> list[Violation]:
    """The compatibility gate with the catalog's table; DeployError for a table that is wrong."""
    return compatibility(wanted, plan, observed, known())


def ask_all(
    state: State, verb: str, requests: Mapping[str, dict[str, Any]], timeout_s: int
) -> dict[str, dict[str, Any]]:
    """Each node's answer to its request; DeployError with a line for each node that gave none."""
    state = real(state)
    jobs = {
        name: gevent.spawn(_ask, state, name, verb, request, timeout_s)
        for name, request in requests.items()
    }
    gevent.joinall(list(jobs.values()))
    answers = {name: job.get() for name, job in jobs.items()}
    failed = [str(answer) for answer in answers.values() if isinstance(answer, AskFailed)]
    if failed:
        raise DeployError("\n".join(failed))
    return answers


def _ask(state: State, name: str, verb: str, request: dict[str, Any], timeout_s: int) -> Any:
    try:
        return ask_node(state, state.inventory.get_host(name), verb, request, timeout_s)
    except AskFailed as error:
        return error


def ask_pip(
    state: State, plan: Plan, wanted: str, venvs: Mapping[str, str]
) -> dict[str, VenvWheels]:
    """What pip on each node would do to bring `wanted` into a new venv beside its own, where torch
    is resolved anew as well, for gates.artifact.pip_plan.
    """
    spec = wheels_spec(plan)
    logger.info(f"    asking pip what {spec.package} {wanted} would change (nothing is installed)")
    requests: dict[str, dict[str, Any]] = {
        node: {
            "venv": venv,
            "package": spec.package,
            "wanted": wanted,
            "pip_args": pip_args(plan),
            "timeout_s": PIP_TIMEOUT_S // 3,
        }
        for node, venv in venvs.items()
    }
    answers = ask_all(state, "wheels", requests, PIP_TIMEOUT_S + 30)
    return {node: _typed(VenvWheels, node, answer) for node, answer in answers.items()}


def _typed(model: Any, node: str, answer: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        raise DeployError(f"{node}: the host's answer {misfit(error)}") from None


def ask_artifacts(state: State, plan: Plan) -> dict[str, tuple[ArtifactAnswer, ...]]:
    """What lies in the engine of each node, image or venv, for gates.artifact.provenance."""
    requests: dict[str, dict[str, Any]] = {}
    for node in plan.rig.nodes:
        venv = venv_of(plan, node.name)
        libraries: Sequence[str] = VENV_LIBRARIES if venv else LIBRARIES
        # A venv's builder leaves its metadata, if any, at the top of the venv.
        metadata = ("/build-metadata.yaml",) if venv else METADATA
        asked = probes(libraries, plan.recipe.modules, metadata)
        box = plan.recipe.container
        asked += tuple(
            ArtifactProbe(path=f"{library}/{row.unless.path}", contains=row.unless.contains)
            for row in plan.recipe.modules
            if row.unless
            for library in libraries
        )
        where = {"image": box.image} if box and not venv else {"root": venv}
        if not venv:
            asked += tuple(
                ArtifactProbe(path=patch.path, contains=patch.contains)
                for patch in plan.recipe.patches
            )
        requests[node.name] = {**where, "probes": [probe.to_json() for probe in asked]}
    answers = ask_all(state, "artifact", requests, LOOK_TIMEOUT_S)
    return {
        node: tuple(_typed(ArtifactAnswer, node, row) for row in answer["probes"])
        for node, answer in answers.items()
    }


def look_at_patches(
    state: State, plan: Plan, venvs: Mapping[str, str | None]
) -> tuple[dict[str, tuple[PatchState, ...]], dict[str, dict[str, Any]]]:
    """The state of each of the recipe's file patches on each node, and node's raw answers.

    `venvs`: each node's venv (another one than the recipe's for a version that is being
    installed). The answers hold each file's owner and mode, the engine's version, and whether each
    patch tool has been run.
    """
    requests = {node: look_request(plan, node, venv) for node, venv in venvs.items()}
    answers = ask_all(state, "patch look", requests, LOOK_TIMEOUT_S)
    return {node: patch_states(plan, answer) for node, answer in answers.items()}, answers


def patch_states(plan: Plan, answer: Mapping[str, Any]) -> tuple[PatchState, ...]:
    """The state of each of the recipe's file patches, of a node's answer to `patch look`."""
    return tuple(
        _state(patch, row, answer["version"])
        for patch, row in zip(plan.recipe.file_patches, answer["files"], strict=True)
    )


def look_request(plan: Plan, node: str, venv: str | None) -> dict[str, Any]:
    """The request of `rignode patch look` for the recipe's patches in a node's venv."""
    return {
        "venv": venv,
        "package": wheels_spec(plan).package,
        "paths": [patch.path for patch in plan.recipe.file_patches],
        "tools": [tool_request(plan, tool, node, venv) for tool in plan.recipe.patch_tools],
    }


def tool_request(plan: Plan, tool: PatchTool, node: str, venv: str | None) -> dict[str, Any]:
    """A patch tool as node takes it, with the engine's environment under its own: Genesis applies
    the patches whose GENESIS_ENABLE_… is set, and the engine reads the same variables.
    """
    row = {
        "id": tool.id,
        "argv": list(tool.argv),
        "tree": tool.tree,
        "env": {**plan.specs[node].environ, **tool.env},
        "timeout_s": tool.timeout_s,
    }
    return {**row, "venv": venv} if venv else row


def _state(patch: Any, row: Mapping[str, Any], version: str | None) -> PatchState:
    file = row["file"]
    if file is None:
        names = ", ".join(row["matches"]) or "no such file"
        return PatchState(patch, "unknown", f"must match one file: {names}")
    content = base64.b64decode(file["content_base64"])
    try:
        return judge(patch, file["path"], content, version, apply)
    except RuntimeError as error:
        raise DeployError(str(error)) from None
