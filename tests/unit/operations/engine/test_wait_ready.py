"""Waiting for an answer: it ends early for a reason, late with a reason, and tells meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from facts.endpoint.completion import Answer, Endpoint
from facts.unit_state import UnitState
from operations.change.node_call import StepFailed
from operations.engine import wait_ready
from operations.engine.own_answer import NotOurs
from tests.plans.support.scenario import HEAD, WORKER
from tests.unit.operations.doubles import FakeState

ENDPOINT = Endpoint("http://127.0.0.2:8000", "tiny")
LOADING = Answer(False, "HTTP 503: loading")
GOOD = Answer(True, "6 characters in 0.1 s")


def state_of(**changes: object) -> UnitState:
    """A unit that runs."""
    values = {"active": "active", "sub": "running", "restarts": 0, "result": "success",
              "exit_status": 0, "invocation": "one", "last_line": "loading shard 3"}  # fmt: skip
    return UnitState(**{**values, **changes})


TRACE = [
    "(EngineCore pid=7) Traceback (most recent call last):",
    '(EngineCore pid=7)   File "/x/vllm/v1/core/kv_cache_utils.py", line 616, in check',
    "(EngineCore pid=7) ValueError: No available memory for the cache blocks.",
    *["(APIServer pid=1) INFO shutting down"] * 100,
]


def test_a_failed_start_tells_its_root_cause_in_place_of_its_last_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM's root cause stands 70 to 115 lines above the end (field notes of a real GPU)."""
    monkeypatch.setattr(wait_ready, "fact_of", lambda *_: TRACE)
    said = wait_ready.log_tail(FakeState(), HEAD)
    assert said.splitlines()[0] == (
        f"{HEAD}: root cause: ValueError: No available memory for the cache blocks. "
        "(vllm/v1/core/kv_cache_utils.py:616 in check)"
    )
    assert "shutting down" not in said and "journalctl -u rigbook-engine.service" in said
    monkeypatch.setattr(wait_ready, "fact_of", lambda *_: TRACE[3:])
    assert wait_ready.log_tail(FakeState(), HEAD).startswith(f"the last 40 log lines of {HEAD}:")


class Engine:
    """Doubles of the endpoint and the units: what they say at each ask, the last for ever."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        answers: list[Answer],
        worker: list[UnitState | None] | None = None,
        own: list[str | StepFailed | None] | None = None,
    ) -> None:
        self.state = FakeState()
        # systemd calls it active once it has answered on its own host
        self.head = state_of(active="activating", sub="start-post")
        self.asked = 0
        self._answers = self._repeat(answers)
        self._worker = self._repeat(worker or [state_of()])
        patch.setattr(wait_ready, "ask", self._ask)
        patch.setattr(wait_ready, "unit_states", self._units)
        patch.setattr(wait_ready, "_until_started", lambda *_: None)
        patch.setattr(wait_ready, "fact_of", lambda *_: ["last words"])
        patch.setattr(wait_ready, "POLL_S", 0.01)
        self._own = self._repeat(own or [None])
        patch.setattr(wait_ready, "ask_ours", self._ask_ours)

    @staticmethod
    def _repeat(items: list) -> Iterator:
        yield from items[:-1]
        while True:
            yield items[-1]

    def _ask(self, endpoint: Endpoint, timeout_s: float) -> Answer:
        self.asked += 1
        return next(self._answers)

    def _ask_ours(self, *known: object) -> Answer:
        """Ours (None), or why it cannot be told, or whose it is."""
        reason = next(self._own)
        if isinstance(reason, StepFailed):
            raise reason
        endpoint, question = known[3:5]
        assert callable(question)
        answer: Answer = question(endpoint) if reason is None else Answer(False, reason)
        return answer

    def _units(self, state: object, nodes: object) -> dict[str, UnitState | None]:
        return {HEAD: self.head, WORKER: next(self._worker)}

    def wait(self, budget_s: float = 5, patient: bool = False) -> Answer:
        """What the function under test says."""
        both = (HEAD, WORKER)
        return wait_ready.wait_for_answer(self.state, HEAD, both, ENDPOINT, budget_s, patient)


def test_the_first_good_answer_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is waited out."""
    engine = Engine(monkeypatch, [LOADING, LOADING, GOOD])
    # one more behind the first: the one that is looked at
    assert engine.wait() is GOOD and engine.asked == 4


def test_an_answer_counts_when_it_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 55: our unit is not up yet, somebody answers; it is waited for, or ended at once."""
    engine = Engine(monkeypatch, [GOOD], own=["the unit is activating", None])
    assert engine.wait() is GOOD
    engine = Engine(monkeypatch, [GOOD], own=["the unit is activating"])
    with pytest.raises(StepFailed, match="the unit is activating"):
        engine.wait(0.05)
    engine = Engine(monkeypatch, [GOOD], own=[NotOurs("not this rig's engine")])
    with pytest.raises(NotOurs, match="not this rig's engine"):
        engine.wait()
    assert engine.asked == 1


def test_a_head_that_has_started_is_asked_by_its_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine gets no connection: what our engine says to its own host ends the wait."""
    engine = Engine(monkeypatch, [Answer(False, "ConnectTimeout")])
    engine.head = state_of()
    monkeypatch.setattr(wait_ready, "ask_ours", lambda *_: GOOD)
    assert engine.wait() is GOOD and engine.asked == 1


def test_ours_that_dies_while_somebody_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our unit fails beside an engine that answers: the wait does not go on to its budget."""
    now = state_of(sub="auto-restart", restarts=1)
    engine = Engine(monkeypatch, [GOOD], [state_of(), now], own=["the unit is activating"])
    with pytest.raises(StepFailed, match=f"{WORKER}: the engine ended"):
        engine.wait()


def test_an_answer_that_waiting_cannot_mend_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with the answer and the log."""
    engine = Engine(monkeypatch, [Answer(False, "HTTP 500: CUDA error", final=True)])
    with pytest.raises(StepFailed, match=r"HTTP 500: CUDA error\n.*\n    last words"):
        engine.wait()
    assert engine.asked == 1


def test_the_budget_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last answer, the budget and the log."""
    engine = Engine(monkeypatch, [LOADING])
    with pytest.raises(StepFailed, match=r"\(budget 0.05 s\): HTTP 503: loading"):
        engine.wait(0.05)
    assert engine.asked > 1


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (state_of(active="failed", result="exit-code", exit_status=1), "unit failed: exit-code"),
        (state_of(restarts=1), "systemd restarts it"),
        (state_of(invocation="two"), "started the unit anew"),
    ],
)
def test_a_dead_worker_ends_it(
    monkeypatch: pytest.MonkeyPatch, now: UnitState, reason: str
) -> None:
    """A lost rank is told at once, although the head still loads."""
    engine = Engine(monkeypatch, [LOADING], [state_of(), now])
    with pytest.raises(StepFailed, match=f"{WORKER}: .*{reason}"):
        engine.wait()
    assert engine.asked == 1


def test_after_a_boot_a_second_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """docker came late, systemd starts the unit again: only one that it gave up ends the wait."""
    again = [state_of(), state_of(sub="auto-restart", restarts=1), state_of(restarts=1)]
    engine = Engine(monkeypatch, [LOADING, LOADING, LOADING, GOOD], again)
    assert engine.wait(patient=True) is GOOD
    given_up = state_of(active="failed", result="start-limit-hit")
    engine = Engine(monkeypatch, [LOADING], [state_of(), state_of(restarts=1), given_up])
    with pytest.raises(StepFailed, match=f"{WORKER}: unit failed: start-limit-hit"):
        engine.wait(patient=True)


def test_a_host_that_cannot_be_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short loss of the line is no death of the engine."""
    engine = Engine(monkeypatch, [LOADING, LOADING, GOOD], [state_of(), None, state_of()])
    assert engine.wait() is GOOD


def test_progress_has_phase_time_budget_and_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the head, now and then."""
    monkeypatch.setattr(wait_ready, "PROGRESS_S", 0.0)
    engine = Engine(monkeypatch, [LOADING, LOADING, GOOD], [state_of(), None, state_of()])
    engine.wait()
    first, second = engine.state.hosts[HEAD].lines
    assert first == f"waiting for the unit on {WORKER}: 0 s of 5 s; {HEAD}: loading shard 3"
    assert second.startswith("engine is loading: ")
