"""Each question of the suite, against answers that are right and answers that are not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from facts.endpoint.completion import Endpoint
from facts.endpoint.tool_suite import SUITE, run_suite

ORDER = {"customer": {"name": "Ada", "city": "Bonn"},
         "items": [{"article": "pen", "count": 3}, {"article": "ink", "count": 1}]}  # fmt: skip
RIGHT: dict[str, list[tuple[str, Any]]] = {
    "one-tool": [("get_weather", {"city": "Paris"})],
    "choice": [("get_time", {"city": "Tokyo, Japan"})],
    "none-needed": [],
    "nested": [("place_order", ORDER)],
    "parallel": [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Paris"})],
    "streamed": [("get_weather", {"city": "Oslo"})],
}


class Stand:
    """An engine that gives the calls of `calls`, by the question's name; text is sent as it is."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = dict(RIGHT)
        self.status = 200
        stand = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked = body["messages"][0]["content"]
                name = next(task.name for task in SUITE if task.prompt == asked)
                self.send_response(stand.status)
                self.end_headers()
                made = [
                    {"function": {"name": tool, "arguments":
                                  values if isinstance(values, str) else json.dumps(values)}}
                    for tool, values in stand.calls[name]
                ]  # fmt: skip
                if not body.get("stream"):
                    message = {"role": "assistant", "content": "Hello.", "tool_calls": made}
                    self.wfile.write(json.dumps({"choices": [{"message": message}]}).encode())
                    return
                for index, call in enumerate(made):
                    function = call["function"]
                    for piece in (
                        {"name": function["name"], "arguments": ""},
                        *({"arguments": letter} for letter in function["arguments"]),
                    ):
                        self._say([{"index": index, "function": piece}])
                self.wfile.write(b"data: [DONE]\n\n")

            def _say(self, pieces: list[Any]) -> None:
                chunk = {"choices": [{"delta": {"tool_calls": pieces}}]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.endpoint = Endpoint(f"http://127.0.0.1:{self.server.server_address[1]}", "tiny")


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_what_is_as_asked_gets_the_whole_score(stand: Stand) -> None:
    rows = run_suite(stand.endpoint)
    assert [row.name for row in rows] == [*RIGHT] and all(row.ok for row in rows), rows


@pytest.mark.parametrize(
    ("name", "calls", "said"),
    [
        ("one-tool", [], "calls no tool; get_weather was asked for 1 times"),
        ("one-tool", [("get_weather", '{"city": "Pa')], "no JSON"),
        ("one-tool", [("get_weather", {"city": "London"})], "the arguments lack Paris"),
        ("one-tool", [("get_weather", ["Paris"])], "the arguments lack Paris"),
        ("choice", [("get_weather", {"city": "Tokyo"})], "calls get_weather; get_time"),
        ("none-needed", [("send_mail", {})], "calls send_mail though none is needed"),
        ("nested", [("place_order", {**ORDER, "customer": "Ada"})], "the nested arguments"),
        ("nested", [("place_order", {**ORDER, "items": json.dumps(ORDER["items"])})], "nested"),
        ("parallel", [("get_weather", {"city": "Paris, Rome"})], "was asked for 2 times"),
        ("streamed", [("get_weather", '{"city": "Os')], "no JSON"),
    ],
)
def test_what_is_not_as_asked_is_told(stand: Stand, name: str, calls: Any, said: str) -> None:
    stand.calls[name] = calls
    bad = [row for row in run_suite(stand.endpoint) if not row.ok]
    assert [row.name for row in bad] == [name] and said in bad[0].detail, bad


def test_an_endpoint_that_refuses_scores_nothing(stand: Stand) -> None:
    stand.status = 500
    assert not any(row.ok for row in run_suite(stand.endpoint))
    rows = run_suite(Endpoint("http://127.0.0.1:9", "tiny"))
    assert len(rows) == 6 and all("ConnectError" in row.detail for row in rows)
