"""facts.endpoint.completion.ask against a stand-in engine: what is an answer, what is worth asking
again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from facts.endpoint.completion import KEY_VARIABLE, Endpoint, ask, metric_names
from tests.plans.support.engine_double import METRICS, EngineDouble, Reply, completion

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


def asked(reply: Reply, timeout_s: float = 5.0, **expects: Any) -> Any:
    """The answer of an engine that says `reply`."""
    with EngineDouble(lambda: reply) as engine:
        return ask(Endpoint(engine.url, "tiny", **expects), timeout_s)


def test_content_is_an_answer() -> None:
    """With its length, its time and its model."""
    answer = asked(Reply())
    assert answer.ok and not answer.final
    assert (answer.text, answer.model) == ("Hello.", "tiny")
    assert answer.detail.startswith("6 characters in ") and answer.seconds > 0


def test_the_question_is_a_small_chat_completion() -> None:
    """Deterministic; the recipe's template arguments go along, and only then."""
    with EngineDouble() as engine:
        ask(Endpoint(engine.url, "tiny"))
        ask(Endpoint(engine.url, "tiny", True, (("enable_thinking", True),)))
    plain, thinking = engine.asked
    assert (plain["model"], plain["temperature"]) == ("tiny", 0)
    assert plain["messages"][0]["role"] == "user" and plain["max_tokens"] <= 32
    assert "chat_template_kwargs" not in plain
    assert thinking["chat_template_kwargs"] == {"enable_thinking": True}
    assert thinking["max_tokens"] > plain["max_tokens"]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_expected_reasoning_under_both_names(field: str) -> None:
    """vLLM renamed the field."""
    assert asked(Reply(completion("4", **{field: "2 + 2"})), reasoning=True).ok


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        (Reply(completion("")), "the completion is empty"),
        (Reply(completion(" \n")), "the completion is empty"),
        (Reply(completion(None)), "the completion is empty"),
        (Reply("not json"), "HTTP 200 without a completion: 'not json'"),
        (Reply("[]"), "without a completion"),
        (Reply({"choices": []}), "without a completion"),
        (Reply({"choices": [{"message": None}]}), "without a completion"),
        (Reply({"object": "error", "message": "x"}), "without a completion"),
        (Reply(completion(7)), "without a completion"),
        (Reply("no", 401), "401: the engine lives and wants a key"),
        (Reply("no such model", 404), "HTTP 404: no such model"),
        (Reply("CUDA error", 500), "HTTP 500: CUDA error"),
    ],
)
def test_answers_that_waiting_cannot_mend(reply: Reply, detail: str) -> None:
    """Not ok, and final."""
    answer = asked(reply)
    assert (answer.ok, answer.final) == (False, True)
    assert detail in answer.detail


def test_missing_reasoning_is_no_good_answer() -> None:
    """A parser that was not switched on shows here, not at the first client."""
    answer = asked(Reply(), reasoning=True)
    assert (answer.ok, answer.final) == (False, True)
    assert "the reasoning field is empty" in answer.detail and answer.text == "Hello."


@pytest.mark.parametrize("status", [408, 425, 429, 502, 503, 504])
def test_not_yet_is_asked_again(status: int) -> None:
    """Loading or busy; a long page of text is cut."""
    answer = asked(Reply("x" * 5000, status))
    assert (answer.ok, answer.final) == (False, False)
    assert f"HTTP {status}: x" in answer.detail and len(answer.detail) < 400


def test_nobody_listens() -> None:
    """An engine that is still starting."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        answer = ask(Endpoint(url, "tiny"), 5.0)
    assert (answer.ok, answer.final) == (False, False)
    assert answer.detail.startswith(f"{url}/v1/chat/completions: ConnectError: ")


def test_an_engine_that_hangs_is_given_up() -> None:
    """A lost rank: the port is open, nothing comes."""
    answer = asked(Reply(late_s=1.0), timeout_s=0.2)
    assert (answer.ok, answer.final) == (False, False)
    assert "ReadTimeout" in answer.detail


def test_a_line_that_breaks_off_is_asked_again() -> None:
    """The engine died while it answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)

        def hang_up() -> None:
            connection, _ = server.accept()
            connection.recv(100)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        answer = ask(Endpoint(f"http://127.0.0.1:{server.getsockname()[1]}", "tiny"), 5.0)
        thread.join()
    assert (answer.ok, answer.final) == (False, False)


def test_the_operators_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rig is on the LAN; a proxy would answer for it."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert asked(Reply()).ok


def test_metric_names() -> None:
    """vLLM's own, once each, without labels."""
    with EngineDouble(metrics=METRICS) as engine:
        assert metric_names(Endpoint(engine.url, "tiny")) == {
            "vllm:num_requests_running",
            "vllm:up",
        }


def test_metrics_that_are_not_there() -> None:
    """An error for the caller, not an empty set."""
    with EngineDouble(metrics=None) as engine, pytest.raises(httpx.HTTPStatusError):
        metric_names(Endpoint(engine.url, "tiny"))


@pytest.mark.parametrize(
    ("begins", "part", "pause_s", "says"),
    [
        (HEAD, b" ", 0.1, "not whole after 1 s"),
        (HEAD, b" " * 65536, 0, "more than"),
        # headers, too, which httpx limits one read at a time
        (b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.1, "not whole after 1 s"),
        (b"", b"H", 0.1, "not whole after 1 s"),
    ],
)
def test_what_drips_or_floods_is_left(
    begins: bytes, part: bytes, pause_s: float, says: str
) -> None:
    """Whatever holds the port could hang doctor, verify and serve, or eat the memory."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)

        def send() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(begins)
                until = time.monotonic() + 15
                while time.monotonic() < until:
                    connection.sendall(part)
                    time.sleep(pause_s)

        thread = threading.Thread(target=send)
        thread.start()
        began = time.monotonic()
        answer = ask(Endpoint(f"http://127.0.0.1:{server.getsockname()[1]}", "tiny"), 1.0)
        assert time.monotonic() - began < 4
        thread.join()
    assert not answer.ok and says in answer.detail


@pytest.mark.parametrize(
    ("ours", "wanted", "ok", "keys"),
    [
        (False, "K3Y", False, [None]),
        (True, "K3Y", True, [None, "Bearer K3Y"]),
        (True, "another", False, [None, "Bearer K3Y"]),
        (True, None, True, [None]),
    ],
)
def test_the_key_goes_to_our_engine_that_asks_for_one(
    monkeypatch: pytest.MonkeyPatch, ours: bool, wanted: str | None, ok: bool, keys: list[str]
) -> None:
    """A 401 is the words that it wants a key, and never an answer."""
    monkeypatch.setenv(KEY_VARIABLE, "K3Y")
    with EngineDouble(key=wanted) as engine:
        answer = ask(Endpoint(engine.url, "tiny", ours=ours), 5.0)
    assert (answer.ok, answer.alive, engine.keys) == (ok, not ok, keys)
    assert ok or "wants a key" in answer.detail
