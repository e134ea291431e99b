"""What the endpoint says to the doctor, and what that means."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from facts.endpoint.completion import Endpoint
from facts.endpoint.probe import probe
from gates.core.violation import Violation
from gates.doctor.endpoint import answered
from gates.doctor.examine import examine
from schema.observed.endpoint_probe import Probe
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

PLAN = spark_plan()
URL = "http://192.168.1.11:8000"


class Double:
    """Stand-in for the engine's API; `say`: path to (status, body), or None to cut the line."""

    def __init__(self) -> None:
        self.say: dict[str, tuple[int, Any] | None] = {
            "/health": (200, ""),
            "/v1/models": (200, {"data": [{"id": "tiny"}]}),
            "/metrics": (200, 'vllm:generation_tokens_total{model_name="tiny"} 7.0\n'),
            "/v1/chat/completions": (200, {"choices": [{"message": {"content": "Hi"}}]}),
        }
        self.slow: dict[str, float] = {}
        self.asked: list[dict[str, Any]] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(double.slow.get(self.path, 0))
                said = double.say[self.path]
                if said is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                body = said[1] if isinstance(said[1], str) else json.dumps(said[1])
                try:
                    self.send_response(said[0])
                    self.end_headers()
                    self.wfile.write(body.encode())
                except OSError:
                    return

            def do_POST(self) -> None:
                double.asked.append(
                    json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                )
                if double.slow.get(self.path):
                    double.say["/metrics"] = (200, "vllm:generation_tokens_total 19.0\n")
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        serve = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        serve.start()

    def ask(self, budget_s: float = 3.0) -> Probe:
        return probe(Endpoint(self.url, "tiny"), budget_s)


@pytest.fixture
def engine() -> Iterator[Double]:
    double = Double()
    yield double
    double.server.shutdown()
    double.server.server_close()


def chat(content: Any, **more: Any) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"content": content, **more}}]}


def test_a_healthy_endpoint(engine: Double) -> None:
    seen = engine.ask()
    assert (seen.failure, seen.health, seen.models, seen.served) == (None, 200, 200, ("tiny",))
    assert engine.asked[0]["model"] == "tiny" and engine.asked[0]["max_tokens"] <= 8


def test_reasoning_alone_is_an_answer(engine: Double) -> None:
    """A thinking model has no content in its first tokens; the engine answers all the same."""
    engine.say["/v1/chat/completions"] = chat(None, reasoning="Let me")
    assert engine.ask().failure is None


@pytest.mark.parametrize(
    ("say", "failure"),
    [
        ((500, "EngineDeadError"), "status"),
        ((404, "no such model"), "status"),
        (chat(""), "empty"),
        (chat(None), "empty"),
        ((200, "<html>"), "empty"),
        ((200, {"choices": []}), "empty"),
        ((200, []), "empty"),
        (None, "disconnected"),
    ],
)
def test_healthy_and_cannot_answer(engine: Double, say: Any, failure: str) -> None:
    engine.say["/v1/chat/completions"] = say
    seen = engine.ask()
    assert (seen.failure, seen.models) == (failure, 200)
    assert seen.detail.startswith(engine.url)


def test_nobody_listens(engine: Double) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    seen = probe(Endpoint(f"http://127.0.0.1:{port}", "tiny"))
    assert (seen.failure, seen.health) == ("refused", None) and time.monotonic() - started < 15


def test_a_busy_engine_makes_tokens_for_others_meanwhile(engine: Double) -> None:
    engine.slow["/v1/chat/completions"] = 3.0
    seen = engine.ask(0.6)
    assert (seen.failure, seen.generated) == ("timeout", 12.0)


def test_a_server_that_hangs_is_left_in_time(engine: Double) -> None:
    engine.slow = dict.fromkeys(engine.say, 30.0)
    started = time.monotonic()
    seen = engine.ask(1.0)
    assert seen.failure == "timeout" and seen.health is None and seen.generated is None
    assert time.monotonic() - started < 15


def told(seen: Probe, after: Any = None) -> list[Violation]:
    before = f.serving(PLAN)
    return answered(PLAN, seen, before, after or before)


def test_an_answer_is_no_finding() -> None:
    assert told(Probe(URL, "a first answer in 0.2 s")) == []


def test_slow_is_a_warning_and_silence_blocks() -> None:
    (slow,) = told(Probe(URL, "d", "timeout", models=200, generated=40.0, seconds=5.0))
    assert (slow.code, slow.severity) == ("answer-slow", "warn") and "40 tokens" in slow.evidence
    for generated in (0.0, None):
        (hung,) = told(Probe(URL, "d", "timeout", models=200, generated=generated))
        assert (hung.code, hung.severity) == ("no-answer", "block")
        assert "verify.py" in hung.remedy and "restart.py" in hung.remedy
    (silent,) = told(Probe(URL, "refused", "refused"))
    assert silent.code == "no-answer" and "serve.py" in silent.remedy


def test_the_engine_that_its_first_chat_kills() -> None:
    """/health 200, models listed, the chat cut off; a look later the unit restarts (lab-notes)."""
    seen = Probe(URL, "RemoteProtocolError", "disconnected", None, 200, 200, ("tiny",))
    after = f.serving(PLAN)
    words = ("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler",)
    dying = h.unit(sub_state="auto-restart", active_state="activating", errors=words)
    after["spark1"] = f.put(after["spark1"], "units.0", dying)
    (one,) = told(seen, after)
    assert (one.code, one.node, one.severity) == ("cannot-answer", "spark1", "block")
    assert "/health 200, /v1/models 200 (tiny)" in one.evidence
    assert "auto-restart after the question" in one.evidence and "no compiler" in one.cause
    (alive,) = told(seen)
    assert alive.cause == "" and "after the question" not in alive.evidence


def test_a_wedged_pair_explains_the_500() -> None:
    before = f.serving(PLAN)
    for node in before:
        before[node] = f.put(before[node], "connections", ())
    seen = Probe(URL, "HTTP 500", "status", 500, 200, 200, ("tiny",))
    found = [v for v in examine(PLAN, before, seen) if v.severity == "block"]
    assert [v.code for v in found] == ["wedged-pair", "cannot-answer"]
    assert found[0].explains == ("cannot-answer@spark1",)
