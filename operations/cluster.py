"""Pods restarted."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping, Sequence
from functools import partial
from typing import Any

import gevent
from pydantic import ValidationError
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation

from facts.node import AskFailed, ask_node
from operations.run import Run, StepFailed, call
from schema.cluster import KubeLook, Pod, PodName

# The pods of a Deployment: how they are doing while they start, and their restart.

# A Deployment's pods while they start: in a line, and whether waiting for them is useless.

POLL_S = 3.0


def progress(now: KubeLook) -> str:
    """The rollout in a line: numbers, the newest pod, its newest event, its last log line."""
    parts = [now.rollout.words]
    fresh = staying(now)[:1]
    parts += [f"{p.name} {p.waiting or p.phase} {p.ready}/{p.containers}" for p in fresh]
    parts += [f"event: {now.event}"] if now.event else []
    parts += [f"log: {pod.log[-1][:120]}" for pod in fresh if pod.log]
    return "; ".join(parts)


def staying(now: KubeLook) -> list[Pod]:
    """The pods that are not on their way out, newest first."""
    return [pod for pod in now.pods if not pod.leaving]


def stop_if_stuck(now: KubeLook, former: Collection[str] = ()) -> None:
    """StepFailed when the newest pod cannot come up, with its last words.

    `former`: uids of the pods before a change, which is often made because those are stuck.
    """
    for pod in [pod for pod in staying(now) if pod.uid not in former][:1]:
        if pod.stuck:
            raise StepFailed(f"{pod.name}: {pod.stuck}, {pod.restarts} restarts{last_lines([pod])}")
    if now.rollout.failed:
        raise StepFailed(f"the rollout's own deadline has passed: {progress(now)}")


def wait_for_rollout(
    state: State,
    host: Host,
    asked: dict[str, Any],
    generation: int,
    seconds: int,
    former: Collection[str],
    verb: str = "rolled out",
) -> KubeLook:
    """The Deployment of `kube look`'s request once a rollout after `generation` has ended; its
    progress is told.

    StepFailed when its pod cannot come up, or after `seconds`, with the last words. `former` as
    `stop_if_stuck` takes it; `verb`: what was to happen, for that line.
    """
    deadline, said = time.monotonic() + seconds, ""
    while True:
        seen = None
        try:
            seen = KubeLook.model_validate(ask_node(state, host, "kube look", asked))
        except (AskFailed, ValidationError) as error:
            line = f"the cluster does not answer: {' '.join(str(error).split())[:200]}"
        else:
            line = progress(seen)
            stop_if_stuck(seen, former)
            if seen.rollout.done and seen.rollout.generation > generation:
                return seen
        if line != said:
            host.log(line)
            said = line
        if time.monotonic() > deadline:
            raise StepFailed(
                f"{host.name}: not {verb} within {seconds} s: {line}"
                + (last_lines(seen.pods) if seen else "")
            )
        gevent.sleep(POLL_S)


def last_lines(pods: Sequence[Pod]) -> str:
    """The last lines of the first pod's log, each on a line of its own."""
    lines = [line for pod in pods[:1] for line in pod.log[-5:]]
    return "".join(f"\n    {line}" for line in lines)


# Restarts the pods that keep a former library, one Deployment after the other, each proven.

RESTART_S = 120


def deployment_of(pod: PodName) -> str | None:
    """The Deployment of a pod: its ReplicaSet is named after it, with a hash; None for others."""
    if pod.owner_kind != "ReplicaSet" or "-" not in pod.owner:
        return None
    return pod.owner.rpartition("-")[0]


@operation()
def restart_cluster(
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
