"""Restarts the pods that keep a former library, one Deployment after the other, each proven."""

from __future__ import annotations

import time
from collections.abc import Collection

import gevent
from pydantic import ValidationError
from pyinfra.api import Host, State

from deploys.procedures.cluster.pod_status import progress, stop_if_stuck
from facts.observe import real
from facts.rignode.call import AskFailed, ask_node
from gates.cluster.mounted_library import mappers_of
from operations.change.node_call import StepFailed, call
from operations.change.run import Run
from schema.desired.kubernetes import ClusterPlan
from schema.observed.kube import KubeLook
from schema.observed.library import LibraryLook, PodName

POLL_S = 3.0
RESTART_S = 120


def to_restart(now: LibraryLook, ours: str) -> dict[str, PodName]:
    """The pods, by uid, whose processes have another library than ours mapped."""
    pods = now.pods if isinstance(now.pods, dict) else {}
    old = [m.pod for m in mappers_of(now) if m.sha256 != ours and m.pod in pods]
    return {uid: pods[uid] for uid in dict.fromkeys(old) if uid is not None}


def deployment_of(pod: PodName) -> str | None:
    """The Deployment of a pod: its ReplicaSet is named after it, with a hash; None for others."""
    if pod.owner_kind != "ReplicaSet" or "-" not in pod.owner:
        return None
    return pod.owner.rpartition("-")[0]


def restart_pods(
    state: State, plan: ClusterPlan, run: Run, pods: dict[str, PodName]
) -> tuple[str, ...]:
    """Restarts them by rollout, each once the one before runs; what was done, a line each.

    StepFailed when one does not come up: the others are left alone.
    """
    host = real(state).inventory.get_host(plan.rig.head.name)
    lines = []
    for uid, pod in pods.items():
        name = deployment_of(pod)
        if name is None:
            lines.append(f"{pod.namespace}/{pod.name} has no Deployment: restart it by hand")
            continue
        data = plan.data
        where = {"kubectl": data.kubectl, "kubeconfig": data.kubeconfig,
                 "namespace": pod.namespace, "deployment": name}  # fmt: skip
        run.touched.add(host.name)
        request = {"change": run.change(), **where, "pod": uid}
        done = call(real(state), host, "kube restart", request, RESTART_S)
        if done["restarted"]:
            host.log(f"restart Deployment {pod.namespace}/{name}")
            where["container"] = done["container"]
            _wait(state, host, where, done["generation"], data.patience_s, pods)
        lines.append(f"Deployment {pod.namespace}/{name} was restarted")
    return tuple(dict.fromkeys(lines))


def _wait(
    state: State,
    host: Host,
    where: dict[str, str | None],
    generation: int,
    seconds: int,
    former: Collection[str],
) -> None:
    deadline, said = time.monotonic() + seconds, ""
    while True:
        line, done = "the cluster does not answer", False
        try:
            now = KubeLook.model_validate(ask_node(real(state), host, "kube look", where))
        except (AskFailed, ValidationError):
            pass
        else:
            line = progress(now)
            stop_if_stuck(now, former)
            done = now.rollout.done and now.rollout.generation > generation
        if done:
            return
        if line != said:
            host.log(line)
            said = line
        if time.monotonic() > deadline:
            raise StepFailed(f"{host.name}: not restarted within {seconds} s: {line}")
        gevent.sleep(POLL_S)
