"""Stand-in for the engine's HTTP API on a loopback address: chat completions and /metrics."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from types import TracebackType
from typing import Any

METRICS = '# HELP vllm:x stand-in\nvllm:num_requests_running{model="tiny"} 0\nvllm:up 1\npy:x 2\n'
_COUNTER = count(2)


def loopback() -> str:
    """A loopback address of this test process alone, so that two runs never share port 8000."""
    number = next(_COUNTER)
    return f"127.{1 + os.getpid() % 250}.{1 + os.getpid() // 250 % 250}.{number % 250}"


def completion(content: object = "Hello.", **message: Any) -> dict[str, Any]:
    """A chat completion as vLLM answers it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}}
    return {"model": "tiny", "choices": [choice]}


@dataclass
class Reply:
    """What the double says to a chat request: status, body (a dict becomes JSON), seconds late."""

    body: dict[str, Any] | str = field(default_factory=completion)
    status: int = 200
    late_s: float = 0.0


class EngineDouble:
    """Answers as `reply()` says, until closed; `asked` holds the bodies of the chat requests,
    `keys` the Authorization of every request.

    `metrics` None: /metrics is not there. `key`: what it wants, else 401.
    """

    def __init__(
        self,
        reply: Callable[[], Reply] = Reply,
        address: str | None = None,
        port: int = 0,
        metrics: str | None = METRICS,
        key: str | None = None,
    ) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                double.keys.append(self.headers["Authorization"])
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                double.asked.append(json.loads(raw))
                refused = key is not None and self.headers["Authorization"] != f"Bearer {key}"
                answer = Reply("wants a key", 401) if refused else reply()
                time.sleep(answer.late_s)
                body = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
                known = self.path == "/v1/chat/completions"
                self._send(answer.status if known else 404, body)

            def do_GET(self) -> None:
                double.keys.append(self.headers["Authorization"])
                if self.path == "/health":
                    self._send(200, "")
                    return
                known = self.path == "/metrics" and metrics is not None
                self._send(200 if known else 404, metrics or "not found")

            def _send(self, status: int, body: str) -> None:
                self.send_response(status)
                self.end_headers()
                # The client of a late answer is gone by then.
                try:
                    self.wfile.write(body.encode())
                except OSError:
                    return

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self.address = address or loopback()
        self._server = ThreadingHTTPServer((self.address, port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{self.address}:{self._server.server_address[1]}"
        # A short poll: shutdown waits for it, once a double.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def __enter__(self) -> EngineDouble:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
