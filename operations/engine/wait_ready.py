"""Waiting for a real answer, with progress: phase, elapsed, budget, last log line.

Ends early when a unit died: an engine that cannot start does not start by waiting. An answer counts
when it is our engine's (operations/engine/own_answer.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import gevent
from pyinfra.api import State

from facts import unit_state as engine_facts
from facts.endpoint.completion import Answer, Endpoint, ask
from facts.rignode.context import fact_of, real
from facts.unit_state import UnitState
from node.rules import root_cause
from operations.change.node_call import StepFailed
from operations.engine.own_answer import ask_ours
from schema.desired.plan import UNIT

POLL_S = 2.0
PROGRESS_S = 10.0
LOG_LINES = 400
# Where no line names a root cause.
TAIL_LINES = 40
# How long the unit's own question may lag behind ours.
STARTED_S = 15.0


class EngineDied(StepFailed):
    """The unit ended while it was waited for; another start may or may not help."""


def unit_states(state: State, nodes: Collection[str]) -> dict[str, UnitState | None]:
    """The engine unit's state on each node, asked at the same time; None: no answer."""
    jobs = {
        node: gevent.spawn(fact_of, state, state.inventory.get_host(node), engine_facts.Unit, UNIT)
        for node in nodes
    }
    gevent.joinall(list(jobs.values()))
    return {node: job.get() for node, job in jobs.items()}


def wait_for_answer(
    state: State,
    head: str,
    nodes: Collection[str],
    endpoint: Endpoint,
    budget_s: int,
    patient: bool = False,
) -> Answer:
    """The first good answer of our engine that now starts on `nodes`, whoever else may answer.

    Raises StepFailed when a unit ended, when the engine answers in a way that waiting cannot
    mend, when what answers is not ours, or when `budget_s` seconds passed; its text carries the
    last log lines of the node.
    `patient`: a unit that systemd starts again (after a boot, say) is waited for; only one that
    systemd has given up ends the wait.
    """
    state = real(state)
    started = time.monotonic()
    first = unit_states(state, nodes)
    reporter = state.inventory.get_host(head)
    told = started

    def left() -> float:
        return max(5.0, budget_s - (time.monotonic() - started))

    def attempt() -> Answer:
        nonlocal told
        # Whoever answers this gets no key.
        answer, now = ask(endpoint, left()), None
        if answer.ok or answer.alive:
            _until_started(state, head)
        else:
            now = unit_states(state, nodes)
            if not answer.final:
                _stop_if_dead(state, first, now, patient)
        if now is None or _started(now, head):
            # Somebody answers, or our unit has seen an answer on its own host; whose engine it is,
            # is looked at around another one.
            seen = ask_ours(state, head, nodes, endpoint, lambda w: ask(w, left()), left())
            if seen.ok or seen.not_from_here or answer.alive or not answer.final:
                answer = seen
        if answer.ok or answer.final:
            return answer
        if now is None:
            now = unit_states(state, nodes)
            _stop_if_dead(state, first, now, patient)
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            phase = _phase(now)
            reporter.log(f"{phase}: {told - started:.0f} s of {budget_s} s; {_last(now, head)}")
        return answer

    # Here, not above: a run that changes nothing waits for nothing.
    from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

    waiting = Retrying(
        retry=retry_if_result(lambda answer: not answer.ok and not answer.final),
        stop=stop_after_delay(budget_s),
        wait=wait_fixed(POLL_S),
        retry_error_callback=lambda done: done.outcome and done.outcome.result(),
    )
    answer = waiting(attempt)
    if not answer.ok:
        seconds = time.monotonic() - started
        raise StepFailed(
            f"no good answer after {seconds:.0f} s (budget {budget_s} s): {answer.detail}\n"
            + log_tail(state, head)
        )
    return answer


def _started(now: Mapping[str, UnitState | None], head: str) -> bool:
    """Whether systemd has seen the head's unit answer on its own host (its ExecStartPost)."""
    unit = now.get(head)
    return unit is not None and unit.active == "active"


def _until_started(state: State, head: str) -> None:
    """Waits until systemd, too, has seen an answer: its own question ends a moment after ours."""
    deadline = time.monotonic() + STARTED_S
    while time.monotonic() < deadline:
        unit = unit_states(state, [head])[head]
        if unit is None or unit.active != "activating":
            return
        time.sleep(POLL_S / 2)


def _stop_if_dead(
    state: State,
    first: Mapping[str, UnitState | None],
    now: Mapping[str, UnitState | None],
    patient: bool,
) -> None:
    for node, unit in now.items():
        earlier = first.get(node)
        if unit is None or earlier is None or (patient and unit.active != "failed"):
            continue
        reason = unit.ended_since(earlier)
        if reason:
            raise EngineDied(f"{node}: {reason}\n{log_tail(state, node, earlier.invocation)}")


def _phase(now: Mapping[str, UnitState | None]) -> str:
    up = ("active", "activating")
    waiting = [n for n, unit in now.items() if unit is None or unit.active not in up]
    if waiting:
        return f"waiting for the unit on {', '.join(sorted(waiting))}"
    return "engine is loading"


def _last(now: Mapping[str, UnitState | None], head: str) -> str:
    unit = now.get(head)
    return f"{head}: {unit.last_line}" if unit and unit.last_line else f"{head}: no log line yet"


def log_tail(state: State, node: str, invocation: str = "") -> str:
    """The root cause in a node's engine log (of that start of it) with the file and line of vLLM's
    own trace, or, where none stands, its last lines; indented under a heading.
    """
    host = state.inventory.get_host(node)
    lines = fact_of(state, host, engine_facts.Log, UNIT, LOG_LINES, invocation) or []
    cause = root_cause.find(lines)
    if cause is None:
        lines = lines[-TAIL_LINES:]
        rows = (f"    {line}" for line in lines)
        return "\n".join([f"the last {len(lines)} log lines of {node}:", *rows])
    return f"{node}: {cause.line()}\n    the whole log: journalctl -u {UNIT} -n {LOG_LINES}"
