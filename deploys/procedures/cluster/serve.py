"""serve on a Kubernetes rig: its Deployment runs, and its engine gives a real completion.

The chart is somebody else's, so nothing of the template is changed: a Deployment that was scaled to
nothing gets its pod, a pod that cannot come up or does not answer any more starts anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pyinfra import logger
from pyinfra.api import State

from deploys.common.load_and_gate import once
from deploys.procedures.cluster.completion import ask_once, must_ask, wait_for_completion, where
from deploys.procedures.cluster.gpu_limit import look, models, request
from deploys.procedures.cluster.load_and_gate import UNDO_TIMEOUT_S, gate_cluster, load_cluster
from deploys.procedures.cluster.pod_status import staying
from deploys.procedures.cluster.restart_pods import restart_pods
from facts.observe import real
from gates.cluster import gpu_limit
from gates.core.violation import Violation
from gates.gate_sets import CHANGING
from operations.change.apply import apply
from operations.change.run import Run
from operations.engine import engine
from operations.engine.engine import Steps
from operations.rollback.revert import undo_only
from schema.desired.kubernetes import ClusterPlan
from schema.observed.kube import KubeLook, Pod
from schema.observed.library import PodName


@dataclass(frozen=True)
class Start:
    """One run: the steps and what to say, the pod to restart (uid and name), whether an answer is
    still to be waited for, the pods before it, the change.
    """

    steps: Steps
    lines: tuple[str, ...]
    restarts: dict[str, PodName]
    needed: bool
    former: frozenset[str]
    run: Run = field(compare=False)


def serve_deployment(state: State) -> None:
    """serve's four paragraphs, for a Deployment."""
    # Load: what should answer, and where.
    plan = load_cluster()

    # Gate: whether. A pod that is started with a bad model file or limit dies minutes later.
    _, waivers = gate_cluster(plan, CHANGING, lambda: findings(plan))
    work = decide(state, plan, waivers)

    # Act: journalled; the chart's own template stays as it is.
    apply(
        name="Start the Deployment",
        run=work.run,
        label="kube",
        steps=work.steps,
        members=[plan.rig.head.name],
        idle="the Deployment has these values",
        words=work.lines,
    )

    # Verify: a real answer within the start's budget; a crash loop ends the wait at once.
    engine.prove(
        name="A real chat completion",
        run=work.run,
        needed=work.needed,
        check=lambda: proof(state, plan, work),
    )


def findings(plan: ClusterPlan) -> list[Violation]:
    """What would let the started pod die: model files, limits that HAMi misreads."""
    node, now = plan.rig.head.name, look(plan)
    return [*models(plan), *gpu_limit.limits_readable(node, now)]


def decide(state: State, plan: ClusterPlan, waivers: tuple[tuple[str, str], ...]) -> Start:
    """The work of this run, decided once."""

    def make() -> Start:
        must_ask(plan, "serve")
        run = Run(state, "serve", plan, waivers, undo_only(timeout_s=UNDO_TIMEOUT_S))  # type: ignore[arg-type]
        return _decide(state, plan, look(plan), run)

    work: Start = once("start", make)
    return work


def _decide(state: State, plan: ClusterPlan, now: KubeLook, run: Run) -> Start:
    former = frozenset(pod.uid for pod in now.pods)
    what = f"Deployment {plan.data.namespace}/{now.name}"
    if now.rollout.wanted == 0:
        step = request(plan, replicas=1, uid=now.uid, resource_version=now.resource_version)
        steps: Steps = [{**step, "op": "kube", "container": now.container}]
        return Start(steps, (f"{what}: 0 pods become 1",), {}, True, former, run)
    newest = next(iter(staying(now)), None)
    if newest is not None and newest.stuck:
        return _anew(plan, now, newest, f"{newest.stuck}, {newest.restarts} restarts", run)
    host = real(state).inventory.get_host(plan.rig.head.name)
    answer = ask_once(real(state), host, plan)
    if answer.answered:
        found = answer.where or where(plan)
        logger.info(f"    {plan.data.model} answers at {found}: {answer.detail}")
        return Start([], (), {}, False, former, run)
    age = newest.age_s if newest is not None else None
    if newest is not None and age is not None and age > plan.data.patience_s:
        return _anew(plan, now, newest, f"no real answer: {answer.detail}", run)
    logger.info(f"    {what} starts: {answer.detail}")
    return Start([], (), {}, True, frozenset(), run)


def _anew(plan: ClusterPlan, now: KubeLook, pod: Pod, why: str, run: Run) -> Start:
    logger.info(f"    {pod.name}: {why}: it starts anew")
    name = PodName(
        namespace=plan.data.namespace, name=pod.name, phase=pod.phase,
        owner_kind="ReplicaSet", owner=f"{now.name}-{pod.hash}",
    )  # fmt: skip
    return Start([], (), {pod.uid: name}, True, frozenset(p.uid for p in now.pods), run)


def proof(state: State, plan: ClusterPlan, work: Start) -> str:
    """A line about a real answer; StepFailed says why there is none."""
    deadline = time.monotonic() + plan.data.patience_s if work.former else None
    told = restart_pods(state, plan, work.run, work.restarts)
    line = wait_for_completion(state, plan, deadline, work.former)
    return "; ".join((*told, line))
