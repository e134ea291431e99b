"""A real completion from the engine of a Kubernetes rig, asked from its host or inside its pod."""

from __future__ import annotations

import time
from collections.abc import Collection

import gevent
from pydantic import ValidationError
from pyinfra.api import Host, State
from pyinfra.api.exceptions import DeployError

from deploys.procedures.cluster.gpu_limit import deployment_request
from facts.rignode.call import AskFailed, ask_node
from facts.rignode.context import real
from operations.change.node_call import StepFailed
from operations.cluster.pod_status import last_lines, progress, staying, stop_if_stuck
from schema.desired.plan import Plan
from schema.observed.kube import HostAnswer, KubeLook

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


def where(plan: Plan) -> str:
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
            return f"{plan.chart.model} answers at {answer.where or where(plan)}: {answer.detail}"
        now = pods_now(real(state), host, plan)
        if now is not None:
            stop_if_stuck(now, former)
        if deadline is None:
            deadline = time.monotonic() + _left(plan, now)
        if answer.final or time.monotonic() > deadline:
            raise StepFailed(
                f"{plan.chart.model} does not answer at {where(plan)}: {answer.detail}"
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
