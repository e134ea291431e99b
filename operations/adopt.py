"""A taken-over engine's answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from pydantic import ValidationError
from pyinfra import host
from pyinfra.api import FunctionCommand, State, operation

from facts.endpoint import Answer, Endpoint, ask
from facts.local import api_key
from facts.node import AskFailed, ask_node
from operations.run import Run, StepFailed
from schema.cluster import HostAnswer
from schema.plan import Plan

# A rig that others serve, taken over: room for our engine, and the answer of theirs again.

# The former engine's real answer: where it comes from, and waiting for it after an undo.

# The key in a change's `blob` under which its run keeps the former engine's endpoint.
CONTEXT = "former"
POLL_S = 2.0
PROGRESS_S = 10.0
# node takes no longer limit for one question
LONGEST_S = 600


@dataclass(frozen=True)
class Served:
    """Where a former engine answers, and who runs it in words; `answered`: it gave an answer before
    the take-over. `pod`: namespace, deployment and container of one in a pod's own network, which
    is asked inside the pod.
    """

    node: str
    port: int
    model: str
    by: str
    answered: bool = False
    pod: Mapping[str, str] | None = None


def endpoint_of(plan: Plan, served: Served) -> Endpoint:
    """The former engine's endpoint; what an answer of its model is like, the recipe says."""
    expect = plan.recipe.expect
    return Endpoint(
        base_url=f"http://{plan.rig.node(served.node).lan_address}:{served.port}",
        model=served.model,
        reasoning=expect.reasoning,
        chat_template_kwargs=tuple(expect.chat_template_kwargs.items()),
        key=api_key(plan),
    )


def ask_former(state: State, plan: Plan, served: Served, timeout_s: float) -> Answer:
    """One real answer of the former engine, asked by its node where it is in a pod's network."""
    where = endpoint_of(plan, served)
    if served.pod is None:
        return ask(where, timeout_s)
    host, seconds = state.inventory.get_host(served.node), min(int(timeout_s), LONGEST_S)
    request = {"kubectl": "auto", **served.pod, "port": served.port, "model": served.model,
               "reasoning": where.reasoning, "timeout_s": seconds}  # fmt: skip
    try:
        said = HostAnswer.model_validate(
            ask_node(state, host, "kube answer", request, seconds + 40)
        )
    except (AskFailed, ValidationError) as error:
        return Answer(False, " ".join(str(error).split())[:200])
    return Answer(said.answered, said.detail, said.final, said.wants_key, model=said.model)


def former_in(changes: Mapping[str, Mapping[str, Any] | None]) -> Served | None:
    """What a change keeps of who served before it; None for one that took nothing over."""
    blobs = ((change or {}).get("blob") or {} for change in changes.values())
    return next((Served(**blob[CONTEXT]) for blob in blobs if CONTEXT in blob), None)


def started_by_hand(changes: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """How to start what a change ended and no unit starts: `NODE: COMMAND` each."""
    rows = [(node, step) for node, change in changes.items()
            for step in (change or {}).get("steps", ())
            if step["op"] == "former_engine" and not step.get("by")]  # fmt: skip
    # a change of 0.2.0 has no commands: its undo says where they lie
    told = ((node, step.get("commands") or ["sudo rignode status"]) for node, step in rows)
    return [f"{node}: {'; '.join(commands)}" for node, commands in told]


def answers_again(state: State, plan: Plan, served: Served, by_hand: Sequence[str]) -> str:
    """A line about a real answer of the former engine; StepFailed where none comes within the
    start budget. One that did not answer before is not waited for. One that was started `by_hand`
    is asked once: an undo does not start it.
    """
    if not served.answered:
        return f"{served.by} is as before; it gave no answer before the take-over either"
    budget_s = plan.recipe.expect.start_budget_s
    reporter = state.inventory.get_host(plan.rig.head.name)
    started = told = time.monotonic()
    while True:
        left = max(5.0, budget_s - (time.monotonic() - started))
        answer = ask_former(state, plan, served, left)
        took = time.monotonic() - started
        if answer.ok or answer.alive:
            return f"{served.model} of {served.by} serves again: {answer.detail}"
        if by_hand:
            return f"{served.by} was started by hand; to start it again: {'; '.join(by_hand)}"
        if took > budget_s:
            raise StepFailed(
                f"{served.by} is as before, but does not answer after {took:.0f} s: {answer.detail}"
            )
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            reporter.log(f"the former engine is loading: {took:.0f} s of {budget_s} s")
        gevent.sleep(POLL_S)


# The look between the former engine's end and the start of ours.


@operation()
def require_room(
    run: Run, needed: bool, check: Callable[[], str]
) -> Generator[FunctionCommand, None, None]:
    """
    Have our engine started only where the former one has left what it needs.

    + run: the change
    + needed: whether a former engine was ended
    + check: looks and says so, or raises StepFailed
    """
    if not needed:
        host.noop("no former engine was ended")
        return
    reporter = host
    run.show_once(host, "room", lambda: host.log("wait until port and memory are free"))
    yield run.step("room", [host.name], lambda: reporter.log(check()))
