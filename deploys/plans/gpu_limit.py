"""Which values gpu_limit sets, and the arithmetic behind them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import gevent
from pydantic import ValidationError
from pyinfra import logger
from pyinfra.api import Host, State
from pyinfra.api.exceptions import DeployError

from deploys.plans.libvgpu import ask_typed, guard_away
from deploys.plans.rig import Procedure, files_in, once_a_run, units_in
from facts.node import AskFailed, ask_node, real
from gates import cluster
from gates.cluster import LIMIT_MIB, LimitError
from gates.core import Violation
from operations.apply import Steps, folder_steps
from operations.cluster import last_lines, progress, staying, stop_if_stuck, wait_for_rollout
from operations.engine import file_steps, timer_steps
from operations.run import StepFailed
from schema.cluster import HostAnswer, KubeLook, ModelFiles, Pod
from schema.keys import GpuLimitData
from schema.plan import Plan
from schema.render_engine import LIMIT_FILES, LIMIT_GUARD_TIMER, LIMIT_STATE_PATH, limit_documents
from schema.snapshot import Gpus, NodeSnapshot, Unreadable

# The steps of the guard beside a limit: the values written down, its units started or ended.


def around_limit(
    plan: Plan, snapshot: NodeSnapshot, now: KubeLook, values: Mapping[str, str],
    edits: Mapping[str, str],
) -> Steps:  # fmt: skip
    """With `guard`: what is guarded already in this container, and these values; else none is.

    DeployError when what is guarded cannot be read.
    """
    data, files = plan.chart_as(GpuLimitData), files_in(snapshot)
    units = {name: unit for name, unit in units_in(snapshot).items() if name == LIMIT_GUARD_TIMER}
    if not data.guard:
        steps = guard_away(files, units, LIMIT_FILES)
        if LIMIT_STATE_PATH in files and files[LIMIT_STATE_PATH].kind == "file":
            steps.append({"op": "absent", "path": LIMIT_STATE_PATH})
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
    return [
        *steps,
        *changes,
        *timer_steps(LIMIT_GUARD_TIMER, units.get(LIMIT_GUARD_TIMER), written),
    ]


def _edits(known: Mapping[str, str], edits: Mapping[str, str]) -> dict[str, str]:
    """What a chart that is deployed again would bring, each with what is to stand there: an edit of
    what an earlier one left goes from the chart's own text.
    """
    found = {old: edits.get(new, new) for old, new in known.items()}
    found.update({old: new for old, new in edits.items() if old not in known.values()})
    return {old: new for old, new in found.items() if old != new}


DEVICES = 8
LIMITS = (cluster.VARIABLE, *(cluster.variable(n) for n in range(DEVICES)))


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
    return list(cluster.models_fit(plan.rig.head.name, seen, wanted))


def asked_values(plan: Plan, snapshot: NodeSnapshot) -> dict[str, str]:
    """The variables to set, the memory limit among them; DeployError says what may not be set."""
    data, now = plan.chart_as(GpuLimitData), inspect_deployment(plan)
    values = data.set or {}
    for name in values:
        if name in LIMITS:
            raise DeployError(f"set: {name} is a memory limit; give it as --data limit=24000m")
    for texts in (data.edit or {}).items():
        if any(cluster.VARIABLE in text for text in texts):
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
        cluster.parse_limit(data.limit)  # before the driver is asked for anything
    name, device = _variable(plan, now, snapshot)
    lines = [line for pod in now.pods for line in pod.log]
    oom = cluster.largest(cluster.ooms(lines), device)
    wanted = data.wanted or (oom.wanted if oom else None)
    hardware, reserve = _hardware(plan, snapshot, device), data.reserve_mib * LIMIT_MIB
    if oom is not None:
        logger.info(
            f"    the log says: Device {oom.device} OOM {oom.wanted} / {oom.allowed}: "
            f"{cluster.shown(oom.wanted - oom.allowed)} too little"
        )
    if data.limit is None:
        if wanted is None:
            raise LimitError(
                "no `Device N OOM` in the pods' logs to compute a limit from; give "
                "--data limit=24000m, or --data wanted=BYTES"
            )
        text = cluster.as_text(cluster.proposed(hardware, reserve, wanted))
    else:
        text = data.limit
    for line in cluster.checked(cluster.parse_limit(text), hardware, reserve, wanted):
        logger.info(f"    {line}")
    return name, text


def _variable(plan: Plan, now: KubeLook, snapshot: NodeSnapshot) -> tuple[str, int | None]:
    """The variable that counts and its device (None: all): the one asked for, the one that is set,
    or that of the only GPU.
    """
    asked = plan.chart_as(GpuLimitData).device
    if asked is not None:
        return cluster.variable(asked), asked
    there = [name for name in LIMITS if name in now.variables and _is_set(now, name)]
    if len(there) == 1:
        index = LIMITS.index(there[0])
        return there[0], index - 1 if index else None
    gpus = snapshot.gpus.gpus if isinstance(snapshot.gpus, Gpus) else ()
    if not there and len(gpus) < 2:
        return cluster.variable(0), 0
    what = f"sets {', '.join(there)}" if there else f"sets none, for {len(gpus)} GPUs"
    raise LimitError(f"Deployment {now.name} {what}; name the one: --data device=N")


def _is_set(now: KubeLook, name: str) -> bool:
    found = now.variables[name]
    return found.value is not None or found.kind == "unclear"


def _hardware(plan: Plan, snapshot: NodeSnapshot, device: int | None) -> int:
    """The memory of the device (the smallest, where the limit is for all), in bytes."""
    given = plan.chart_as(GpuLimitData).hardware_mib
    if given is not None:
        return given * LIMIT_MIB
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
    return min(sizes) * LIMIT_MIB


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
    guard = around_limit(plan, rig.snapshots[plan.rig.head.name], now, values, edits)
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


# A real completion from the engine of a Kubernetes rig, asked from its host or inside its pod.

POLL_S = 3.0
ASK_S = 60
NOT_SET = "no completion was asked for: group_data has no model with url, service or port"


def must_ask(plan: Plan, deploy: str) -> None:
    """DeployError when group_data does not say how a completion is asked for."""
    if plan.chart.model is None:
        raise DeployError(
            f"{deploy} needs model in the rig's group_data, the name that the engine serves, and "
            "one of url, service (kubectl get service) and port (asked inside the pod)"
        )


def completion_where(plan: Plan) -> str:
    """What is asked, in words."""
    data = plan.chart
    if data.url is not None:
        return data.url
    if data.service is not None:
        return f"Service {data.service}"
    return f"port {data.port} in the pod"


def ask_once(state: State, host: Host, plan: Plan, seconds: int = ASK_S) -> HostAnswer:
    """One completion of the Deployment's pods. A host that cannot say counts as no answer yet."""
    data = plan.chart
    asked = deployment_request(plan, url=data.url, service=data.service, port=data.port,
                model=data.model, reasoning=data.reasoning, timeout_s=seconds,
                key_file=data.key_file)  # fmt: skip
    try:
        return HostAnswer.model_validate(ask_node(state, host, "kube answer", asked, seconds + 40))
    except (AskFailed, ValidationError) as error:
        text = " ".join(str(error).split())[:200]
        return HostAnswer(answered=False, detail=text, final=False, model="")


def pods_now(state: State, host: Host, plan: Plan) -> KubeLook | None:
    """The Deployment and its pods' last words; None when the cluster does not say."""
    try:
        return KubeLook.model_validate(ask_node(state, host, "kube look", deployment_request(plan)))
    except (AskFailed, ValidationError):
        return None


def wait_for_completion(
    state: State,
    plan: Plan,
    deadline: float | None = None,
    former: Collection[str] = (),
) -> str:
    """A line about a real completion; StepFailed when none comes before `deadline` (monotonic;
    None: the start's budget, counted from the newest pod's start), or the pod cannot come up.

    A first request compiles kernels for a minute and more: the budget is the rig's own. `former`:
    uids of the pods that are to go, whatever state they are in.
    """
    if plan.chart.model is None:
        return NOT_SET
    host, said = real(state).inventory.get_host(plan.rig.head.name), ""
    while True:
        answer = ask_once(real(state), host, plan)
        if answer.answered:
            return (
                f"{plan.chart.model} answers at {answer.where or completion_where(plan)}: "
                f"{answer.detail}"
            )
        now = pods_now(real(state), host, plan)
        if now is not None:
            stop_if_stuck(now, former)
        if deadline is None:
            deadline = time.monotonic() + _left(plan, now)
        if answer.final or time.monotonic() > deadline:
            raise StepFailed(
                f"{plan.chart.model} does not answer at {completion_where(plan)}: {answer.detail}"
                + (last_lines(staying(now)) if now else "")
            )
        line = f"no completion yet: {answer.detail}" + (f"; {progress(now)}" if now else "")
        if line != said:
            host.log(line)
            said = line
        gevent.sleep(POLL_S)


def _left(plan: Plan, now: KubeLook | None) -> float:
    """What is left of the start's budget, in seconds; none of it where no pod is to start."""
    if now is None or now.rollout.wanted == 0:
        return 0.0
    ages = [pod.age_s for pod in staying(now)[:1] if pod.age_s is not None]
    return max(0.0, plan.chart.patience_s - (ages[0] if ages else 0.0))


# A rollout while it is under way, and how the new pod proves that it has its values.


def verify_rollout(rig: Procedure, work: Patch) -> str:
    """A line about the new pod and its values; StepFailed once it cannot or does not come up."""
    plan, host = rig.plan, rig.run.host(rig.plan.rig.head.name)
    asked = deployment_request(plan, variables=list(work.values), edit=dict(work.edits))
    deadline = time.monotonic() + plan.chart.patience_s
    now = wait_for_rollout(
        rig.run.state, host, asked, work.generation, plan.chart.patience_s, work.former
    )
    line = _values_seen(plan, now, work)
    line += "".join(f"; {row['cache']}" for row in rig.run.did[host.name] if "cache" in row)
    return f"{line}; {wait_for_completion(rig.run.state, plan, deadline, work.former)}"


def _values_seen(plan: Plan, now: KubeLook, work: Patch) -> str:
    """The line of a proof: template and process have the values. StepFailed when one has not."""
    for name, value in {**work.values, **work.edits}.items():
        if now.variables[name].value != value:
            raise StepFailed(
                f"{name} is {now.variables[name].value!r} again: overwritten by others"
            )
    pods = [pod for pod in staying(now) if pod.phase == "Running"]
    seen = [pod for pod in pods if pod.live.processes]
    for pod in seen:
        _same_inside(pod, work.values)
    if not seen:
        inside = "no process of the pod is seen from this host, so only the template tells"
    else:
        inside = f"seen in {sum(p.live.processes for p in seen)} processes of {seen[0].name}"
        alone = [n for n in work.values if not any(p.live.values.get(n) for p in seen)]
        alone += map(repr, work.edits.values())
        inside += f", {', '.join(alone)} in the template alone" if alone else ""
    has = assignments(work.values, work.edits)
    return f"{title(plan, now)} has {has}; {now.rollout.words}; {inside}"


def _same_inside(pod: Pod, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        other = [found for found in pod.live.values.get(name, ()) if found != value]
        if other:
            raise StepFailed(
                f"{pod.name}: its process has {name}={other[0]}, not {value}: the device plugin "
                "(or the image's start) sets it after the template"
            )
