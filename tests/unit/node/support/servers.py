"""A stand-in endpoint (labelled; it is no engine) and a real HTTP receiver for notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """An HTTP server on a loopback port. `reply` gives status and body of a request's JSON."""

    def __init__(self, reply: Callable[[dict[str, Any]], tuple[int, object]]) -> None:
        self.reply = reply
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = server.reply(body)
                server.got.append(body)
                server.paths.append(self.path)
                raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                if status in (301, 302):
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # a client that was killed or gave up is part of some tests
        self._http.__dict__["handle_error"] = lambda *_: None
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening: a connect is refused from now on."""
        self._http.shutdown()
        self._http.server_close()


def completion(text: str | None = "hello", model: str = "tiny", **message: object) -> object:
    """The body of a chat completion."""
    choice = {"message": {"content": text, **message}, "finish_reason": "length"}
    return {"model": model, "choices": [choice]}


@contextmanager
def serving(reply: Callable[[dict[str, Any]], tuple[int, object]]) -> Iterator[Server]:
    """A server for the time of a test."""
    server = Server(reply)
    try:
        yield server
    finally:
        server.close()
