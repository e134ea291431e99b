"""What an undo of a take-over says of the former engine is what was answered."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from facts.endpoint.completion import Answer, Endpoint
from facts.rignode.call import AskFailed
from operations.adopt import answer
from operations.change.node_call import StepFailed
from tests.plans.support.scenario import HEAD, tiny_plan

SERVED = answer.Served(HEAD, 8123, "theirs", "unit vllm.service", answered=True)
PLAN = tiny_plan()
OK, NO = Answer(True, "6 characters"), Answer(False, "connection refused")


def run(
    monkeypatch: pytest.MonkeyPatch, served: answer.Served, *replies: Answer,
    by_hand: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """The line, and what was logged; the last reply comes again and again, 40 s apart."""
    said: list[str] = []
    asked: list[Endpoint] = []
    rows = list(replies)
    clock = SimpleNamespace(monotonic=lambda: 40.0 * len(asked))

    def ask(where: Endpoint, timeout_s: float) -> Answer:
        asked.append(where)
        return rows.pop(0) if len(rows) > 1 else rows[0]

    monkeypatch.setattr(answer, "ask", ask)
    monkeypatch.setattr(answer, "time", clock)
    monkeypatch.setattr(answer, "gevent", SimpleNamespace(sleep=lambda _: None))
    host = SimpleNamespace(log=said.append)
    state: Any = SimpleNamespace(inventory=SimpleNamespace(get_host=lambda _: host))
    return answer.answers_again(state, PLAN, served, by_hand), said, asked


def test_it_is_waited_for_where_it_was_with_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    line, said, asked = run(monkeypatch, SERVED, NO, NO, OK)
    assert line == "theirs of unit vllm.service serves again: 6 characters"
    assert asked[0].base_url == "http://127.0.0.2:8123" and asked[0].model == "theirs"
    assert said[0] == "the former engine is loading: 40 s of 300 s"


def test_one_that_wants_a_key_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    line, _, _ = run(monkeypatch, SERVED, Answer(False, "401; set RIGBOOK_API_KEY", alive=True))
    assert "serves again: 401" in line


def test_none_within_the_budget_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StepFailed, match=r"as before, but does not answer after 320 s: connection"):
        run(monkeypatch, SERVED, NO)


def test_one_that_gave_no_answer_before_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    served = answer.Served(HEAD, 8123, "theirs", "pid 7")
    line, _, asked = run(monkeypatch, served, NO)
    assert "gave no answer before the take-over either" in line and not asked


def test_one_that_was_started_by_hand_is_asked_once_and_its_commands_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [{"op": "unit"}, {"op": "former_engine", "by": [], "commands": ["bash serve.sh"]}]
    unit = {"op": "former_engine", "by": ["vllm.service"], "commands": ["bash serve.sh"]}
    old = {"op": "former_engine", "by": [], "kept": ["0" * 64]}
    changes = {"a": {"steps": steps}, "b": {"steps": [unit]}, "c": {"steps": [old]}, "d": None}
    told = answer.started_by_hand(changes)
    assert told == ["a: bash serve.sh", "c: sudo rignode status"]
    served = replace(SERVED, by="container vllm_ds4")
    line, _, asked = run(monkeypatch, served, NO, by_hand=tuple(told))
    assert line == (
        "container vllm_ds4 was started by hand; to start it again: a: bash serve.sh; c: sudo "
        "rignode status"
    )
    assert len(asked) == 1
    # somebody did
    line, _, _ = run(monkeypatch, served, OK, by_hand=tuple(told))
    assert line == "theirs of container vllm_ds4 serves again: 6 characters"


IN_POD = {"namespace": "default", "deployment": "lucebox", "container": "engine"}


@pytest.mark.parametrize(("said", "answer_is"), [
    ({"answered": True, "detail": "5 letters", "final": False, "model": "theirs"},
     Answer(True, "5 letters", model="theirs")),
    ({"answered": False, "detail": "no pod of it runs", "final": False, "model": ""},
     Answer(False, "no pod of it runs")),
    (AskFailed("lab1: kube answer: there is no kubectl on this host"),
     Answer(False, "lab1: kube answer: there is no kubectl on this host")),
    ({"answered": 7}, None),
])  # fmt: skip
def test_one_in_a_pods_network_is_asked_by_its_node(
    monkeypatch: pytest.MonkeyPatch, said: Any, answer_is: Answer | None
) -> None:
    sent: list[Any] = []

    def ask_node(state: Any, host: Any, verb: str, request: Any, limit_s: int) -> Any:
        sent.append((host, verb, request, limit_s))
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(answer, "ask_node", ask_node)
    state: Any = SimpleNamespace(inventory=SimpleNamespace(get_host=lambda name: name))
    found = answer.ask_former(state, PLAN, replace(SERVED, pod=IN_POD), 900.0)
    assert found == answer_is if answer_is else not found.ok and "answered" in found.detail
    host, verb, request, limit_s = sent[0]
    # node takes 600 s for one question
    assert (host, verb, request["timeout_s"], limit_s) == (HEAD, "kube answer", 600, 640)
    assert request["kubectl"] == "auto" and request["port"] == 8123
    assert request["deployment"] == "lucebox" and request["model"] == "theirs"


def test_it_is_read_from_any_nodes_change() -> None:
    blob = {"blob": {answer.CONTEXT: asdict(SERVED)}}
    assert answer.former_in({"a": None, "b": {"blob": None}, "c": blob}) == SERVED
    assert answer.former_in({"a": {"blob": {"baseline": 3}}}) is None
