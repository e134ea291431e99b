"""A Deployment's pods while they start: in a line, and whether waiting for them is useless."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import gevent
from pydantic import ValidationError
from pyinfra.api import Host, State

from facts.rignode.call import AskFailed, ask_node
from operations.change.node_call import StepFailed
from schema.observed.kube import KubeLook, Pod

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
