"""A Deployment's pods while they start: in a line, and whether waiting for them is useless."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from operations.change.node_call import StepFailed
from schema.observed.kube import KubeLook, Pod


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


def last_lines(pods: Sequence[Pod]) -> str:
    """The last lines of the first pod's log, each on a line of its own."""
    lines = [line for pod in pods[:1] for line in pod.log[-5:]]
    return "".join(f"\n    {line}" for line in lines)
