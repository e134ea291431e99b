"""The engine of a Kubernetes rig: its Deployment runs, and gives a real completion.

The chart is somebody else's, so nothing of the template is changed: a Deployment that was scaled to
nothing gets its pod, a pod that cannot come up or does not answer any more starts anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import inventory_name
from deploys.common.procedure import Procedure
from deploys.common.runtime import Examined, Work
from deploys.procedures.cluster import libvgpu
from deploys.procedures.cluster.completion import ask_once, must_ask, wait_for_completion, where
from deploys.procedures.cluster.gpu_limit import (
    deployment_request,
    inspect_deployment,
    model_findings,
)
from facts.rignode.context import real
from facts.rignode.together import Together
from gates.cluster import gpu_limit, vgpu_library
from gates.cluster.mounted_library import state_of
from gates.core.check import Observed
from gates.core.codes import section_unreadable, violation
from gates.core.violation import Violation
from operations.change.apply import Steps
from operations.change.node_call import StepFailed
from operations.cluster.pod_status import staying
from operations.engine.engine import Start
from schema.desired.plan import Plan
from schema.observed.kube import KubeLook, Pod
from schema.observed.library import PodName
from schema.observed.snapshot import NodeSnapshot, Unreadable

# a doctor does not wait as a start does
DOCTOR_S = 15


class Deployment:
    """deploys/common/runtime.py's Runtime for a Deployment."""

    def ask_in_background(self, plan: Plan, deploy: str) -> object:
        """Nothing begins; DeployError when serve has no way to ask for a completion."""
        if deploy:
            must_ask(plan, deploy)
        return None

    def findings(self, plan: Plan) -> Sequence[Violation]:
        """What would let the started pod die: model files, limits that HAMi misreads."""
        return [
            *model_findings(plan),
            *gpu_limit.limits_readable(plan.rig.head.name, inspect_deployment(plan)),
        ]

    def plan(self, rig: Procedure) -> Work:
        """A stopped Deployment gets its pod, one that cannot come up or is silent starts anew."""
        plan, now = rig.plan, inspect_deployment(rig.plan)
        former = frozenset(pod.uid for pod in now.pods)
        what = f"Deployment {plan.chart.namespace}/{now.name}"
        if now.rollout.wanted == 0:
            step = deployment_request(
                plan, replicas=1, uid=now.uid, resource_version=now.resource_version
            )
            steps: Steps = [{**step, "op": "kube", "container": now.container}]
            how = Start(steps, f"{what}: 0 pods become 1")
            return _work(rig, start=rig.nodes, how=how, former=former)
        newest = next(iter(staying(now)), None)
        if newest is not None and newest.stuck:
            return _anew(rig, now, newest, f"{newest.stuck}, {newest.restarts} restarts")
        answer = ask_once(real(state), rig.run.host(plan.rig.head.name), plan)
        if answer.answered:
            found = answer.where or where(plan)
            logger.info(f"    {plan.chart.model} answers at {found}: {answer.detail}")
            return _work(rig, needs_proof=False)
        if answer.wants_key:
            raise DeployError(
                f"{plan.chart.model} gives no proof: {answer.detail}; nothing was changed"
            )
        age = newest.age_s if newest is not None else None
        if newest is not None and age is not None and age > plan.chart.patience_s:
            return _anew(rig, now, newest, f"no real answer: {answer.detail}")
        logger.info(f"    {what} starts: {answer.detail}")
        return _work(rig)

    def prove(self, plan: Plan, work: Work | None, patient: bool) -> str:
        """A real answer within the start's budget, counted from now for what this run started; a
        crash loop ends the wait at once.
        """
        former = work.former if work else frozenset()
        deadline = time.monotonic() + plan.chart.patience_s if former or patient else None
        return wait_for_completion(state, plan, deadline, former)

    def verify(self, plan: Plan) -> Sequence[str]:
        """A real answer; a pod that starts is waited for."""
        must_ask(plan, "verify")
        try:
            return [wait_for_completion(state, plan)]
        except StepFailed as error:
            raise DeployError(
                f"{error}; find out why with: pyinfra {inventory_name()} deploys/doctor.py -y"
            ) from None

    def examine(self, plan: Plan, asked: Together, look: Callable[[], Observed]) -> Examined:
        """The host, then what its cluster says of library, Deployment and answer."""
        before, node = look(), plan.rig.head.name
        if not isinstance(before[node], NodeSnapshot):
            return Examined(before)
        now = libvgpu.inspect_library(plan)
        more = [*vgpu_library.readable(node, now), *vgpu_library.preloaded(node, now)]
        more += [*vgpu_library.stayed(node, now), *vgpu_library.old_mapped(node, now)]
        return Examined(before, more=[*more, *model_findings(plan), *_pods(plan), *_silent(plan)])

    def healthy(self, plan: Plan, seen: Examined) -> Sequence[str]:
        """A line about the library that was swapped."""
        known = state_of(libvgpu.inspect_library(plan))
        swapped = (
            f"{known.target} is ours ({known.ours[:12]}), guard {'on' if known.guard else 'off'}"
            if known
            else "no library was swapped"
        )
        return [f"{plan.rig.head.name}: {swapped}; nothing blocks"]


def _work(rig: Procedure, needs_proof: bool = True, **more: Any) -> Work:
    """Work with nothing to write: the chart's template stays as it is."""
    node = rig.plan.rig.head.name
    idle = "the Deployment's template is its chart's, and stays as it is"
    return Work({node: []}, {node: {}}, idle, needs_proof=needs_proof, **more)


def _anew(rig: Procedure, now: KubeLook, pod: Pod, why: str) -> Work:
    name = PodName(
        namespace=rig.plan.chart.namespace, name=pod.name, phase=pod.phase,
        owner_kind="ReplicaSet", owner=f"{now.name}-{pod.hash}",
    )  # fmt: skip
    words = (f"{pod.name}: {why}: it starts anew (cannot be undone)",)
    return _work(rig, words=words, restarts={pod.uid: name},
                 former=frozenset(p.uid for p in now.pods))  # fmt: skip


def _pods(plan: Plan) -> list[Violation]:
    """What is wrong with the Deployment; that it cannot be read is a finding, too."""
    node = plan.rig.head.name
    try:
        now = inspect_deployment(plan)
    except DeployError as error:
        return [section_unreadable(node, "cluster", Unreadable(unreadable=str(error)))]
    return [
        *gpu_limit.pods_run(node, now),
        *gpu_limit.limits_readable(node, now),
        *gpu_limit.limits_inside(node, now),
        *gpu_limit.limit_stayed(node, now),
        *gpu_limit.limit_enough(node, now),
    ]


def _silent(plan: Plan) -> list[Violation]:
    """No real completion; not asked for where group_data does not say how."""
    if plan.chart.model is None:
        return []
    node = plan.rig.head.name
    answer = ask_once(real(state), real(state).inventory.get_host(node), plan, DOCTOR_S)
    if answer.answered:
        return []
    return [
        violation(
            "no-answer",
            node,
            f"{plan.chart.model} gives no real answer at {where(plan)}",
            evidence=answer.detail,
            remedy="mend the findings above first, then: pyinfra INVENTORY deploys/serve.py -y"
            if not answer.wants_key
            else f"write the engine's key into {plan.chart.key_file} on the host"
            if plan.chart.key_file
            else "set key_file in group_data: a file on the host, root's alone (0600), that holds "
            "the engine's key",
        )
    ]
