"""A real completion from the engine of a Kubernetes rig, asked from its host."""

from __future__ import annotations

import time

import gevent
from pydantic import ValidationError
from pyinfra import logger
from pyinfra.api import Host, State
from pyinfra.api.exceptions import DeployError

from deploys.support import inventory_name
from facts.asking import AskFailed, ask_node
from facts.observe import real
from operations.node import StepFailed
from schema.cluster import ClusterPlan
from schema.kube import HostAnswer

POLL_S = 3.0
ASK_S = 60
NOT_SET = "no completion was asked for: group_data has no url and model"


def ask_once(state: State, host: Host, plan: ClusterPlan) -> HostAnswer:
    """One completion. A host that cannot say counts as no answer yet."""
    endpoint = {"url": plan.data.url, "model": plan.data.model,
                "reasoning": plan.data.reasoning, "chat_template_kwargs": {}}  # fmt: skip
    request = {"endpoint": endpoint, "timeout_s": ASK_S}
    try:
        return HostAnswer.model_validate(ask_node(state, host, "answer look", request, ASK_S + 20))
    except (AskFailed, ValidationError) as error:
        text = " ".join(str(error).split())[:200]
        return HostAnswer(answered=False, detail=text, final=False, model="")


def wait_for_completion(state: State, plan: ClusterPlan, deadline: float) -> str:
    """A line about a real completion; StepFailed when none comes before `deadline` (monotonic).

    A first request compiles kernels for a minute and more: the deadline is the start's budget.
    """
    if plan.data.url is None:
        return NOT_SET
    host, said = real(state).inventory.get_host(plan.rig.head.name), ""
    while True:
        answer = ask_once(real(state), host, plan)
        if answer.answered:
            return f"{plan.data.model} answers at {plan.data.url}: {answer.detail}"
        if answer.final or time.monotonic() > deadline:
            raise StepFailed(f"{plan.data.model} at {plan.data.url}: {answer.detail}")
        if answer.detail != said:
            host.log(f"no completion yet: {answer.detail}")
            said = answer.detail
        gevent.sleep(POLL_S)


def prove_it_answers(state: State, plan: ClusterPlan) -> None:
    """Says what answered; DeployError (exit status 1) when nothing did."""
    if plan.data.url is None:
        raise DeployError(
            "verify needs url and model in the rig's group_data: where the host reaches the "
            "engine's Service (kubectl get service), and the name that it serves"
        )
    host = real(state).inventory.get_host(plan.rig.head.name)
    answer = ask_once(real(state), host, plan)
    if not answer.answered:
        raise DeployError(
            f"{plan.data.model} does not answer at {plan.data.url}: {answer.detail}; "
            f"find out why with: pyinfra {inventory_name()} deploys/doctor.py -y"
        )
    logger.info(f"    {plan.data.model} answers at {plan.data.url}: {answer.detail}")
