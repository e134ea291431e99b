"""facts.endpoint.ask against a stand-in engine: what is an answer, what is worth asking
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

from facts.endpoint import KEY_VARIABLE, Answer, Endpoint, ask, ask_for_call, metric_names
from facts.measure import (
    Counters,
    NoMetrics,
    acceptance,
    decoded,
    made,
    read_engine_metrics,
    scrape,
)
from schema.measure import Acceptance
from tests.plans.support.doubles import METRICS, EngineDouble, Reply, completion

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


# The difference of two scrapes, against the numbers of the third seed and of vLLM's own log.

# Names and labels as vLLM 0.32 writes them (vllm/v1/spec_decode/metrics.py, v1/metrics/loggers.py).
TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {tokens}
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{{engine="0",model_name="tiny"}} 1.7638e+09
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="tiny"}} {drafts}
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="tiny"}} {draft_tokens}
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="tiny"}} {accepted}
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="0"}} {p0}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="1"}} {p1}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="2"}} {p2}
"""
BEFORE = {"running": 0, "tokens": 500, "drafts": 100, "draft_tokens": 300, "accepted": 200,
          "p0": 90, "p1": 70, "p2": 40}  # fmt: skip


def text(**more: float) -> str:
    """A scrape that is `more` above the first one."""
    return TEXT.format(**{key: value + more.get(key, 0) for key, value in BEFORE.items()})


def test_c8_mtp_3_is_seen_position_by_position() -> None:
    """C8: 80.8, then 58.3 and 16.2 of 100 where the one before was accepted; 1.44 of 3 a draft."""
    more = {"tokens": 24_400, "drafts": 10_000, "draft_tokens": 30_000, "p0": 8080, "p1": 4711,
            "p2": 763, "accepted": 8080 + 4711 + 763}  # fmt: skip
    found = acceptance(read_engine_metrics(text()), read_engine_metrics(text(**more)))
    assert found == Acceptance(
        drafts=10_000, draft_tokens=30_000, accepted=13_554, per_position=(8080, 4711, 763)
    )
    assert found.conditional == pytest.approx((0.808, 0.583, 0.162), abs=5e-4)
    assert found.unconditional == pytest.approx((0.808, 0.4711, 0.0763))
    assert found.length == pytest.approx(2.3554) and found.rate == pytest.approx(0.4518)
    assert made(read_engine_metrics(text()), read_engine_metrics(text(**more))) == 24_400


def test_what_is_not_there_is_not_told() -> None:
    plain = read_engine_metrics("vllm:generation_tokens_total 5\n")
    assert acceptance(plain, plain) is None and plain.tokens == 5 and plain.hits is None
    # the engine was started anew between the scrapes
    assert acceptance(read_engine_metrics(text(drafts=9)), read_engine_metrics(text())) is None
    assert made(read_engine_metrics(text(tokens=9)), read_engine_metrics(text())) is None
    idle = acceptance(read_engine_metrics(text()), read_engine_metrics(text()))
    assert idle is not None and idle.rate is None and idle.length is None
    assert idle.conditional == (0.0, 0.0, 0.0) and idle.unconditional == ()


def test_requests_that_run_and_wait_are_busy() -> None:
    both = 'vllm:num_requests_running 2\nvllm:num_requests_waiting{engine="0"} 3\n'
    assert read_engine_metrics(both).busy == 5
    # two engines behind one port are summed
    assert read_engine_metrics(both + 'vllm:num_requests_waiting{engine="1"} 1\n').busy == 6


@pytest.mark.parametrize(
    ("metrics", "said"),
    [(None, "/metrics: HTTP 404"), ("go_threads 7\n", "is that a vLLM?"), ("vllm:x {", "no text")],
)
def test_what_is_no_metrics_is_one_line(metrics: str | None, said: str) -> None:
    with EngineDouble(metrics=metrics) as double, pytest.raises(NoMetrics, match=said) as raised:
        scrape(Endpoint(double.url, "tiny"))
    assert "\n" not in str(raised.value)
    with pytest.raises(NoMetrics, match="ConnectError"):
        scrape(Endpoint("http://127.0.0.1:9", "tiny"))
    assert Counters().busy == 0


# two replicas; the histogram as vllm/v1/metrics/loggers.py names it
DECODED = """\
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:request_decode_time_seconds_bucket{{engine="0",le="+Inf"}} {answers}
vllm:request_decode_time_seconds_sum{{engine="0"}} {seconds}
vllm:request_decode_time_seconds_count{{engine="0"}} {answers}
vllm:request_decode_time_seconds_sum{{engine="1"}} 1.5
vllm:request_decode_time_seconds_count{{engine="1"}} 1
"""


@pytest.mark.parametrize(("answers", "seconds", "rate"), [
    (4, 5.2, 50.0),  # 260 tokens of 4 answers, whose first ones no clock has
    (5, 5.2, None),  # one of them is of somebody else
    (4, 0.0, None),  # started anew
])  # fmt: skip
def test_the_engines_own_clock(answers: int, seconds: float, rate: float | None) -> None:
    before = read_engine_metrics(DECODED.format(tokens=1000, answers=7, seconds=2.0))
    after = read_engine_metrics(
        DECODED.format(tokens=1264, answers=7 + answers, seconds=2.0 + seconds)
    )
    assert decoded(before, after, 4) == (rate and pytest.approx(rate))
    assert decoded(Counters(tokens=1), after, 4) is None


# facts.endpoint against a stand-in engine: which call is a proof, and what else came.


def called(arguments: object, name: str = "get_weather", **more: Any) -> dict[str, Any]:
    """A completion with one call, as vLLM gives it."""
    call = {"id": "chatcmpl-tool-8e99c35b9fd663ad", "type": "function",
            "function": {"name": name, "arguments": arguments}}  # fmt: skip
    body = completion(None, tool_calls=[call], **more)
    body["choices"][0]["finish_reason"] = "tool_calls"
    return body


def tool_call_asked(body: dict[str, Any] | str, status: int = 200) -> Answer:
    """The answer about an engine that says `body`."""
    with EngineDouble(lambda: Reply(body, status)) as engine:
        return ask_for_call(Endpoint(engine.url, "tiny"), 5.0)


def test_a_call_that_can_be_run_is_the_proof() -> None:
    answer = tool_call_asked(called('{"city": "Paris"}', reasoning="The user wants the weather."))
    assert answer.ok and answer.detail.startswith(
        "a call of get_weather with arguments that fit in"
    )


def test_the_model_is_free_to_call() -> None:
    """A forced call is made by the grammar, whatever parser there is."""
    with EngineDouble(lambda: Reply(called('{"city": "Paris"}'))) as engine:
        where = Endpoint(engine.url, "tiny", True, (("thinking", True),))
        assert ask_for_call(where).ok
    (body,) = engine.asked
    assert body["tool_choice"] == "auto" and body["temperature"] == 0
    assert body["tools"][0]["function"]["parameters"]["required"] == ["city"]
    assert body["chat_template_kwargs"] == {"thinking": True}


LENGTH = completion("")
LENGTH["choices"][0]["finish_reason"] = "length"
INSTEAD: dict[str, tuple[dict[str, Any] | str, str]] = {
    # hermes-agent#15453
    "text": (completion('< | DSML | tool_calls>< | DSML | invoke name="get_weather">'),
             "the call came as text: the tool parser is off"),
    # vllm#22885: the last brace is lost
    "no brace": (called('{"city": "Paris"'), "its arguments are no JSON: '{\"city\": \"Paris\"'"),
    # vllm#55495: cut off, with a tag of the model's own syntax
    "leaked tag": (called('{"city": "Par\\nis", "</parameter": '), "its arguments are no JSON"),
    # vllm PR#54686: a call without its arguments
    "empty": (called("{}"), "it lacks city: '{}'"),
    "not text": (called({"city": "Paris"}), "its arguments are no JSON"),
    "null": (called(None), "its arguments are no JSON: 'None'"),
    "a list": (called('["Paris"]'), "its arguments are no map"),
    "another type": (called('{"city": 7}'), "it lacks city"),
    "another tool": (called('{"city": "Paris"}', name="get_time"), "the call is of 'get_time'"),
    "words": (completion("It is sunny."), "the model called no tool, it said 'It is sunny.'"),
    "thoughts only": (LENGTH, "no call within 1024 tokens"),
    "no JSON": ("<html>", "HTTP 200 without a completion: '<html>'"),
    "no message": ({"choices": []}, "HTTP 200 without a completion"),
    "a call without a function": (completion("x", tool_calls=[7]), "HTTP 200 without"),
}  # fmt: skip


@pytest.mark.parametrize("name", INSTEAD)
def test_what_came_instead_is_told(name: str) -> None:
    body, words = INSTEAD[name]
    answer = tool_call_asked(body)
    assert not answer.ok and answer.final and words in answer.detail, answer


def test_an_engine_without_a_tool_parser_says_so() -> None:
    """vLLM's own words."""
    said = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    answer = tool_call_asked(said, 400)
    assert not answer.ok and answer.final and "HTTP 400" in answer.detail
    assert "--enable-auto-tool-choice" in answer.detail
