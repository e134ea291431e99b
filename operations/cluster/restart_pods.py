"""Restarts the pods that keep a former library, one Deployment after the other, each proven."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change.node_call import call
from operations.change.run import Run
from operations.cluster.pod_status import wait_for_rollout
from schema.observed.library import PodName

RESTART_S = 120


def deployment_of(pod: PodName) -> str | None:
    """The Deployment of a pod: its ReplicaSet is named after it, with a hash; None for others."""
    if pod.owner_kind != "ReplicaSet" or "-" not in pod.owner:
        return None
    return pod.owner.rpartition("-")[0]


@operation()
def restart(
    run: Run, pods: Mapping[str, PodName], words: Sequence[str]
) -> Generator[FunctionCommand, None, None]:
    """
    Restart the Deployments of these pods by rollout, one after the other.

    + run: the change
    + pods: the pods by uid
    + words: why, a line each
    """
    if not pods:
        host.noop("no pod is to start anew")
        return
    for line in words:
        run.show_once(host, line, partial(host.log, line))
    target = host

    def work() -> None:
        for line in restart_pods(run, pods):
            target.log_styled(line, fg="green")

    yield run.step("restart", [host.name], work)


def restart_pods(run: Run, pods: Mapping[str, PodName]) -> tuple[str, ...]:
    """Restarts them by rollout, each once the one before runs; what was done, a line each.

    StepFailed when one does not come up: the others are left alone.
    """
    target, data = run.host(run.plan.rig.head.name), run.plan.chart
    lines = []
    for uid, pod in pods.items():
        name = deployment_of(pod)
        if name is None:
            lines.append(f"{pod.namespace}/{pod.name} has no Deployment: restart it by hand")
            continue
        where = {"kubectl": data.kubectl, "kubeconfig": data.kubeconfig,
                 "namespace": pod.namespace, "deployment": name}  # fmt: skip
        run.touch(target.name)
        request = {"change": run.change(), **where, "pod": uid}
        done = call(run.state, target, "kube restart", request, RESTART_S)
        if done["restarted"]:
            target.log(f"restart Deployment {pod.namespace}/{name}")
            ours = (pod.namespace, name) == (data.namespace, data.deployment)
            where["container"] = (data.container if ours else None) or done["container"]
            wait_for_rollout(run.state, target, where, done["generation"], data.patience_s, pods,
                             "restarted")  # fmt: skip
        lines.append(f"Deployment {pod.namespace}/{name} was restarted")
    return tuple(dict.fromkeys(lines))
