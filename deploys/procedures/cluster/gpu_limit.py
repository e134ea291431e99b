"""Which values gpu_limit sets, and the arithmetic behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyinfra import logger
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from deploys.procedures.cluster import limit_guard
from deploys.procedures.cluster.ask import ask_typed
from gates.cluster import gpu_limit, memory_limit
from gates.cluster.memory_limit import MIB, LimitError
from gates.core.violation import Violation
from operations.change.apply import Steps
from schema.desired.plan import Plan
from schema.inputs.cluster_runbook_data import GpuLimitData
from schema.observed.kube import KubeLook, ModelFiles
from schema.observed.machine import Gpus
from schema.observed.snapshot import NodeSnapshot

DEVICES = 8
LIMITS = (memory_limit.VARIABLE, *(memory_limit.variable(n) for n in range(DEVICES)))


@dataclass(frozen=True)
class Patch:
    """One run: the values, the step, what to say, the pods before it."""

    values: Mapping[str, str]
    edits: Mapping[str, str]
    steps: Steps
    lines: tuple[str, ...]
    generation: int
    former: frozenset[str]


def deployment_request(plan: Plan, **more: object) -> dict[str, Any]:
    """What `kube look` is asked about this rig's Deployment."""
    data = plan.chart
    return {
        "kubectl": data.kubectl,
        "kubeconfig": data.kubeconfig,
        "namespace": data.namespace,
        "deployment": data.deployment,
        "container": data.container,
        **more,
    }


def inspect_deployment(plan: Plan) -> KubeLook:
    """The Deployment with every memory limit, asked once a run."""
    chart = plan.chart
    data = chart if isinstance(chart, GpuLimitData) else None
    others, edits = (data.set or {}, data.edit or {}) if data else ({}, {})
    asked = deployment_request(plan, variables=[*dict.fromkeys((*LIMITS, *others))], edit=edits)
    return ask_typed(plan, "kube look", asked, KubeLook, "deployment")


def model_findings(plan: Plan) -> list[Violation]:
    """What is wrong with the rig's model files, by their own headers; asked once a run."""
    wanted = plan.chart.models
    if not wanted:
        return []
    seen = ask_typed(plan, "models look", {"paths": list(wanted)}, ModelFiles, "models")
    return list(gpu_limit.models_fit(plan.rig.head.name, seen, wanted))


def asked_values(plan: Plan, snapshot: NodeSnapshot) -> dict[str, str]:
    """The variables to set, the memory limit among them; DeployError says what may not be set."""
    data, now = plan.chart_as(GpuLimitData), inspect_deployment(plan)
    values = data.set or {}
    for name in values:
        if name in LIMITS:
            raise DeployError(f"set: {name} is a memory limit; give it as --data limit=24000m")
    for texts in (data.edit or {}).items():
        if any(memory_limit.VARIABLE in text for text in texts):
            raise DeployError("edit: this is a memory limit; give it as --data limit=24000m")
    if data.limit is None and (values or data.edit):
        return values
    try:
        name, text = _limit(plan, now, snapshot)
    except LimitError as error:
        raise DeployError(str(error)) from None
    return {**values, name: text}


def _limit(plan: Plan, now: KubeLook, snapshot: NodeSnapshot) -> tuple[str, str]:
    """The limit's variable and text; its arithmetic is told. LimitError when it does not fit."""
    data = plan.chart_as(GpuLimitData)
    if data.limit is not None:
        memory_limit.parse_limit(data.limit)  # before the driver is asked for anything
    name, device = _variable(plan, now, snapshot)
    lines = [line for pod in now.pods for line in pod.log]
    oom = memory_limit.largest(memory_limit.ooms(lines), device)
    wanted = data.wanted or (oom.wanted if oom else None)
    hardware, reserve = _hardware(plan, snapshot, device), data.reserve_mib * MIB
    if oom is not None:
        logger.info(
            f"    the log says: Device {oom.device} OOM {oom.wanted} / {oom.allowed}: "
            f"{memory_limit.shown(oom.wanted - oom.allowed)} too little"
        )
    if data.limit is None:
        if wanted is None:
            raise LimitError(
                "no `Device N OOM` in the pods' logs to compute a limit from; give "
                "--data limit=24000m, or --data wanted=BYTES"
            )
        text = memory_limit.as_text(memory_limit.proposed(hardware, reserve, wanted))
    else:
        text = data.limit
    for line in memory_limit.checked(memory_limit.parse_limit(text), hardware, reserve, wanted):
        logger.info(f"    {line}")
    return name, text


def _variable(plan: Plan, now: KubeLook, snapshot: NodeSnapshot) -> tuple[str, int | None]:
    """The variable that counts and its device (None: all): the one asked for, the one that is set,
    or that of the only GPU.
    """
    asked = plan.chart_as(GpuLimitData).device
    if asked is not None:
        return memory_limit.variable(asked), asked
    there = [name for name in LIMITS if name in now.variables and _is_set(now, name)]
    if len(there) == 1:
        index = LIMITS.index(there[0])
        return there[0], index - 1 if index else None
    gpus = snapshot.gpus.gpus if isinstance(snapshot.gpus, Gpus) else ()
    if not there and len(gpus) < 2:
        return memory_limit.variable(0), 0
    what = f"sets {', '.join(there)}" if there else f"sets none, for {len(gpus)} GPUs"
    raise LimitError(f"Deployment {now.name} {what}; name the one: --data device=N")


def _is_set(now: KubeLook, name: str) -> bool:
    found = now.variables[name]
    return found.value is not None or found.kind == "unclear"


def _hardware(plan: Plan, snapshot: NodeSnapshot, device: int | None) -> int:
    """The memory of the device (the smallest, where the limit is for all), in bytes."""
    given = plan.chart_as(GpuLimitData).hardware_mib
    if given is not None:
        return given * MIB
    if not isinstance(snapshot.gpus, Gpus):
        raise LimitError(
            f"the driver does not say how much memory there is ({snapshot.gpus.unreadable}); "
            "--data hardware_mib=N says it"
        )
    found = [g.memory_total_mib for g in snapshot.gpus.gpus if device in (None, g.index)]
    sizes = [size for size in found if size is not None]
    if not sizes or len(sizes) != len(found):
        raise LimitError(
            f"the driver reports no memory for device {'all' if device is None else device}; "
            "--data hardware_mib=N says it"
        )
    return min(sizes) * MIB


@once_a_run
def plan(rig: Procedure) -> Patch:
    """The work of this run, planned once; what the server would change is part of it."""
    plan = rig.plan
    values = asked_values(plan, rig.snapshots[plan.rig.head.name])
    edits = plan.chart_as(GpuLimitData).edit or {}
    now = inspect_deployment(plan)
    former = frozenset(pod.uid for pod in now.pods)
    wanted = {**values, **edits}
    unclear = [f"{n}: {v.why}" for n, v in now.variables.items() if n in wanted and v.why]
    if unclear:
        raise DeployError("; ".join(unclear))
    todo = {n: v for n, v in values.items() if now.variables[n].value != v}
    texts = {old: new for old, new in edits.items() if now.variables[old].value != new}
    guard = limit_guard.around(plan, rig.snapshots[plan.rig.head.name], now, values, edits)
    if not todo and not texts:
        logger.info(f"    {title(plan, now)} has {assignments(values, edits)} already")
        # nothing rolls out: the rollout and the pods that there are count
        return Patch(values, edits, guard, (), now.rollout.generation - 1, frozenset())
    asked = deployment_request(plan, set=todo, edit=texts, logs=False, variables=list(todo))
    planned = ask_typed(plan, "kube look", asked, KubeLook, "planned")
    step = {key: value for key, value in deployment_request(plan).items() if key != "container"} | {
        "op": "kube",
        "container": planned.container,
        "set": todo,
        "edit": texts,
        # a limit that an earlier process wrote into HAMi's shared cache would stay in force
        "clear_cache": any(name in LIMITS for name in todo),
        "uid": planned.uid,
        "resource_version": planned.resource_version,
    }
    lines = [f"{title(plan, planned)}, resourceVersion {planned.resource_version}:"]
    for change in planned.changes or ():
        lines.append(f"  {change.path}: {change.before!r} becomes {change.after!r}")
    return Patch(values, edits, [step, *guard], tuple(lines), planned.rollout.generation, former)


def title(plan: Plan, now: KubeLook) -> str:
    """The Deployment and its container in words."""
    return f"Deployment {plan.chart.namespace}/{now.name}, container {now.container}"


def assignments(values: Mapping[str, str], edits: Mapping[str, str]) -> str:
    """Variables and texts as `NAME=value, NAME=value, 'TEXT'`."""
    set_to = [f"{name}={value}" for name, value in sorted(values.items())]
    return ", ".join([*set_to, *map(repr, edits.values())])
