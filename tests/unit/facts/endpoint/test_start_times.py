"""From a start to the port, to HTTP and to the first token; a port that is not there yet."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gevent
import pytest

from facts.endpoint import start_times
from facts.endpoint.completion import Endpoint
from facts.endpoint.start_times import StartTimes
from schema.measure.run import Start


class Handler(BaseHTTPRequestHandler):
    """Loads for a while: /health is 503, then a chat is 503, then it streams."""

    began = 0.0

    def do_GET(self) -> None:
        self.send_response(200 if time.monotonic() - self.began > 0.2 else 503)
        self.end_headers()

    def do_POST(self) -> None:
        late = time.monotonic() - self.began > 0.4
        self.send_response(200 if late else 503)
        self.end_headers()
        if late:
            for text in ("", "Hello"):
                self.wfile.write(b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n'
                                 % text.encode())  # fmt: skip

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_each_is_seen_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_times, "POLL_S", 0.01)
    Handler.began = time.monotonic()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    watch = StartTimes(Endpoint(f"http://127.0.0.1:{server.server_address[1]}", "tiny"))
    for _ in range(300):
        gevent.sleep(0.01)
        if watch.found.first_token_s is not None:
            break
    found = watch.stop()
    server.shutdown()
    server.server_close()
    assert found.port_s is not None and found.http_s is not None
    assert found.first_token_s is not None
    assert found.port_s < 0.2 <= found.http_s <= 0.4 <= found.first_token_s


def test_what_was_not_seen_is_not_told() -> None:
    watch = StartTimes(Endpoint("http://127.0.0.1:9", "tiny"))
    gevent.sleep(0.05)
    assert watch.stop() == Start()
