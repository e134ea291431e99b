"""Before an engine is touched: secrets, known bad versions, what a boot needs; its proofs after."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gevent
from pydantic import ValidationError
from pyinfra import host, logger, state
from pyinfra.api import Host, State
from pyinfra.api.exceptions import DeployError

from deploys.plans.cli import ROOT
from deploys.plans.rig import data_of, once_a_run, operator_data
from facts.local import SecretMissing, git_apply, value_of
from facts.looks import PatchedFiles
from facts.node import AskFailed, Together, ask_node, fact_of, real
from facts.plain import NcclLog, NcclNetwork
from gates import known_bad
from gates.core import Gate, Observed, Violation, violation
from gates.firmware import Lists
from gates.gate_sets import check
from gates.known_bad import below_gate, compatibility, engine_gate
from gates.patches import PatchState, judge_file_patch_state, told_of_patches
from gates.processes import arguments
from gates.recipe import missing
from node.rules.secret import SECRETS_PATH
from operations.apply import Steps
from operations.run import StepFailed
from schema import compatibility as schema_compatibility
from schema.artifact import (
    LIBRARIES,
    METADATA,
    VENV_LIBRARIES,
    ArtifactAnswer,
    ArtifactProbe,
    ParserAnswer,
    VenvWheels,
    probes,
)
from schema.compatibility import CompatibilityTable, PatchTool, load_table
from schema.core import SpecError, misfit
from schema.hardware import checklists
from schema.keys import HostData
from schema.plan import UNIT, EngineSpec, Plan
from schema.recipe import WheelsSpec
from schema.snapshot import FileState, NodeSnapshot, Unreadable

# The recipe's secrets of one run: read here, compared on the nodes, written by a step of theirs.
#
# A value is in a Secret from the moment it is read, and in clear only in what a node reads from
# its
# stdin. Whether it differs the node says, by name.

Row = dict[str, object]
States = Mapping[str, str]
_LOOK_S = 60


@once_a_run
def _rows(plan: Plan) -> tuple[dict[str, list[Row]], list[tuple[str | None, str, str]]]:
    """What each node gets, by name, and a (None, why, what to do) for each that cannot be had."""
    values, problems = {}, []
    for name, source in plan.recipe.secrets.items():
        try:
            values[name] = value_of(name, source)
        except SecretMissing as error:
            problems.append((None, str(error), error.remedy))
    rows: dict[str, list[Row]] = {}
    for node, spec in plan.specs.items():
        rows[node] = [
            {"name": name, "value": values[name]}
            if values.get(name) is not None
            else {"name": name, "node_file": source.node_file}
            for name, source in spec.secrets.items()
        ]
    return rows, list(problems)


@once_a_run
def _look(plan: Plan) -> dict[str, States | AskFailed]:
    """By node, how its secrets differ from what is wanted, by name; or why it did not say."""
    rows, _ = _rows(plan)
    real_state = real(state)
    jobs = {
        node: gevent.spawn(
            _ask_secrets, real_state, real_state.inventory.get_host(node), _secrets_request(plan, r)
        )
        for node, r in rows.items()
    }
    gevent.joinall(list(jobs.values()))
    return {node: job.get() for node, job in jobs.items()}


def _secrets_request(plan: Plan, rows: list[Row]) -> Row:
    return {"path": SECRETS_PATH, "secrets": rows, "quoted": plan.runtime == "venv"}


def _ask_secrets(a_state: State, host: Host, request: Row) -> States | AskFailed:
    try:
        states: States = ask_node(a_state, host, "secrets look", request, _LOOK_S)["states"]
        return states
    except AskFailed as error:
        return error


def secret_findings(plan: Plan) -> Sequence[Violation]:
    """The secrets that cannot be had, here or on a node; none for a recipe without."""
    if not plan.recipe.secrets:
        return ()
    _, problems = _rows(plan)
    if not problems:
        problems = [
            (node, str(answer), f"on {node}: mend what the evidence names, then run this again")
            for node, answer in _look(plan).items()
            if isinstance(answer, AskFailed)
        ]
    return missing(plan, problems)


def secret_steps(plan: Plan, node: str, now: FileState | None) -> tuple[Steps, dict[str, str]]:
    """The step that makes the node's file of secrets as wanted, with words for its path; none
    where it is so. `now`: the file as the snapshot has it.

    Ask `findings` first: what cannot be had is no step.
    """
    there = now is not None and now.kind == "file"
    if not plan.recipe.secrets:
        gone: Row = {"op": "absent", "path": SECRETS_PATH}
        return ([gone] if there else []), {}
    told = _look(plan)[node]
    if isinstance(told, AskFailed):
        raise DeployError(str(told))
    whole = now is not None and (now.mode, now.uid, now.gid) == ("0600", 0, 0)
    if there and whole and set(told.values()) == {"unchanged"}:
        return [], {}
    step: Row = {
        "op": "file",
        "mode": "0600",
        "owner": "root",
        "group": "root",
        "expect_sha256": now.sha256 if there and now is not None and now.sha256 else "absent",
        **_secrets_request(plan, _rows(plan)[0][node]),
    }
    words = ", ".join(f"{name} {how}" for name, how in told.items())
    return [step], {SECRETS_PATH: words}


# What the next boot of a headless machine needs: its board's checklist, the driver's module.


@once_a_run
def load_lists() -> Lists:
    """The checklists of the catalog; DeployError says what is wrong in them."""
    try:
        return checklists(ROOT)
    except SpecError as error:
        raise DeployError(str(error)) from None


def driver_module(plan: Plan, data: HostData) -> str | None:
    """The kernel module that a boot must have: group data's, else NVIDIA's where the recipe needs
    it, else none."""
    if data.driver_module is not None:
        return data.driver_module
    return "nvidia" if plan.recipe.expect.needs_nvidia else None


# The catalog's tables of what is known to fail and of Xids, and the gates that ask them.


@once_a_run
def known() -> CompatibilityTable:
    """catalog/compatibility.yaml; DeployError says what is wrong in it."""
    try:
        return load_table(ROOT)
    except SpecError as error:
        raise DeployError(str(error)) from None


@once_a_run
def known_xids() -> schema_compatibility.XidTable:
    """catalog/xids.yaml; DeployError says what is wrong in it."""
    try:
        return schema_compatibility.load_xids(ROOT)
    except SpecError as error:
        raise DeployError(str(error)) from None


def running() -> tuple[Gate, ...]:
    """The gates about the kernel, the driver and the version that a rig runs."""
    return (*below(), known_bad.engine_gate(known()))


def below() -> tuple[Gate, ...]:
    """The gate about the kernel and the driver alone: before another version of the engine."""
    return (known_bad.below_gate(known()),)


# What a rig's hosts know of their engine before it is touched: pip's plan, patches, provenance.
#
# Each asks all nodes at the same time, read-only; DeployError names the nodes that did not answer.

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
        name: gevent.spawn(_ask_engine, state, name, verb, request, timeout_s)
        for name, request in requests.items()
    }
    gevent.joinall(list(jobs.values()))
    answers = {name: job.get() for name, job in jobs.items()}
    failed = [str(answer) for answer in answers.values() if isinstance(answer, AskFailed)]
    if failed:
        raise DeployError("\n".join(failed))
    return answers


def _ask_engine(state: State, name: str, verb: str, request: dict[str, Any], timeout_s: int) -> Any:
    try:
        return ask_node(state, state.inventory.get_host(name), verb, request, timeout_s)
    except AskFailed as error:
        return error


def ask_pip(
    state: State, plan: Plan, wanted: str, venvs: Mapping[str, str]
) -> dict[str, VenvWheels]:
    """What pip on each node would do to bring `wanted` into a new venv beside its own, where torch
    is resolved anew as well, for gates.artifact.
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
    """What lies in the engine of each node, image or venv, for gates.provenance."""
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
        return judge_file_patch_state(patch, file["path"], content, version, git_apply)
    except RuntimeError as error:
        raise DeployError(str(error)) from None


# What the doctor asks of an engine's files: are the patches in force, is its version known bad.
#
# A node that cannot say is named as unknown.


class InForce:
    """The recipe's patches on every node: a part of what the nodes are `asked`."""

    def __init__(self, asked: Together, plan: Plan) -> None:
        nodes = [node.name for node in (plan.rig.nodes if plan.recipe.file_patches else ())]
        requests = {name: json.dumps(look_request(plan, name, venv_of(plan, name)))
                    for name in nodes}  # fmt: skip
        self._plan = plan
        self._answers = asked.add(PatchedFiles(), requests)

    def findings(self, observed: Observed) -> list[Violation]:
        """What is not in force, on the nodes that answered at all."""
        found: list[Violation] = []
        for name, answer in self._answers().items():
            if not isinstance(observed.get(name), NodeSnapshot):
                continue  # nodes-reachable names it
            if isinstance(answer, Unreadable):
                found.append(_unknown(name, answer.unreadable))
                continue
            try:
                found += told_of_patches(name, patch_states(self._plan, answer))
            except DeployError as error:
                found.append(_unknown(name, str(error)))
        return found


def _unknown(node: str, why: str) -> Violation:
    return violation(
        "patch-unknown",
        node,
        "whether the recipe's patches are in force cannot be told",
        evidence=why,
        remedy="pyinfra INVENTORY deploys/patch.py --dry --diff",
        unknown=True,
    )


def known_to_fail(plan: Plan, observed: Observed, answers: bool) -> list[Violation]:
    """What runs or lies there although the catalog calls it broken here; DeployError for its table.

    `answers`: the engine gave a real completion. Then the table is what is wrong, and it warns.
    """

    def works(snapshot: NodeSnapshot) -> bool:
        return answers

    return check(plan, observed, [below_gate(known(), works), engine_gate(known(), works)])


# What the vLLM that is to come says of its command line, asked before anything is stopped.

# The longest that the program may take on a host, and the call around it.
TIMEOUT_S = 180
_CALL_S = TIMEOUT_S + 60


def preflight(
    state: State, plan: Plan, deploy: str, venvs: Mapping[str, str] | None = None
) -> list[Violation]:
    """Findings about what the target, image or venv, says of the command line that it is to get;
    read-only, all nodes at the same time. Its seconds are told.

    The nodes of a rig have the same image (the gate `image-differs`), and their command lines
    differ in what rigbook adds: of an image the head alone is asked. A venv is each node's own.
    `venvs`: the folder of each node's venv where it is not the recipe's (a version that comes).
    """
    started = time.monotonic()
    a_state = real(state)
    jobs = {
        name: gevent.spawn(
            _ask_preflight, a_state, name, _preflight_request(plan, spec, (venvs or {}).get(name))
        )
        for name, spec in plan.specs.items()
        if plan.recipe.container is None or name == plan.rig.head.name
    }
    gevent.joinall(list(jobs.values()))
    answers = {name: job.get() for name, job in jobs.items()}
    taken = [name for name, answer in answers.items() if answer.outcome == "accepted"]
    if taken:
        logger.info(
            f"    vLLM's own parser takes the command line of {', '.join(taken)} "
            f"({time.monotonic() - started:.1f} s)"
        )
    return arguments(plan, deploy, answers)


def _preflight_request(plan: Plan, spec: EngineSpec, venv: str | None) -> dict[str, Any]:
    where: dict[str, Any] = {"venv": venv or spec.venv, "user": spec.user}
    if plan.recipe.container is not None:
        volumes = [[source, target] for source, target, _ in spec.volumes]
        where = {"image": plan.recipe.container.image, "volumes": volumes}
    return {"argv": spec.argv, "environ": spec.environ, "timeout_s": TIMEOUT_S, **where}


def _ask_preflight(state: State, name: str, request: dict[str, Any]) -> ParserAnswer:
    try:
        answer = ask_node(state, state.inventory.get_host(name), "preflight", request, _CALL_S)
        return ParserAnswer.model_validate(answer)
    except AskFailed as error:
        why = str(error)
    except ValidationError as error:
        why = f"{name}: the host's answer {misfit(error)}"
    return ParserAnswer(outcome="unchecked", said=why, unsure="", took_s=0.0)


# Whether NCCL really uses RDMA, from the log of the start: it takes TCP without a word.

_MEND = "compare `ls /sys/class/infiniband` there with its hcas: docs/reference/fabric.md"


def expects_rdma(plan: Plan) -> bool:
    """Whether there is anything to prove: a recipe that says so, on several nodes."""
    return plan.recipe.expect.rdma is not None and len(plan.rig.nodes) > 1


def seen_networks(plan: Plan) -> dict[str, NcclNetwork | None]:
    """What each node's log says; None where it could not be asked."""
    here = real(state)
    jobs = {
        node.name: gevent.spawn(fact_of, here, here.inventory.get_host(node.name), NcclLog, UNIT)
        for node in plan.rig.nodes
    }
    gevent.joinall(list(jobs.values()))
    return {name: job.get() for name, job in jobs.items()}


def told(seen: Mapping[str, NcclNetwork | None]) -> tuple[bool, str]:
    """Whether every node's NCCL uses RDMA alone, and a line that says what was seen."""
    good, bad = [], []
    for name, found in seen.items():
        networks = found.networks if found else ()
        if networks and all(network.startswith("IB") for network in networks):
            good.append(name)
        elif networks:
            bad.append(f"NCCL of {name} uses {_named(networks)}, not RDMA")
        else:
            bad.append(f"the log of {name} does not say which network NCCL uses")
    if bad:
        return False, "; ".join(bad)
    ports = {port for found in seen.values() if found for port in found.devices}
    through = f" through {', '.join(sorted(ports))}" if ports else ""
    return True, f"NCCL of {', '.join(good)} uses RDMA (NET/IB){through}"


def _named(networks: tuple[str, ...]) -> str:
    words = ["TCP (NET/Socket)" if one == "Socket" else f"NET/{one}" for one in networks]
    return " and ".join(words)


def proof_of_start(plan: Plan) -> str:
    """What follows the line about the answer, or "". StepFailed where the recipe requires RDMA and
    it was not seen; where it is only wanted, a warning.
    """
    if not expects_rdma(plan):
        return ""
    is_rdma, line = told(seen_networks(plan))
    if is_rdma:
        return f"; {line}"
    if plan.recipe.expect.rdma == "required":
        raise StepFailed(
            f"it answers, but {line}; recipe {plan.recipe.name} has expect.rdma: required; {_MEND}"
        )
    logger.warning(f"    {line}; {_MEND}")
    return f"; {line}"
