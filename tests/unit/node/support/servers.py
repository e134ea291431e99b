"""Stand-ins (labelled) for an endpoint and for docker's socket, and a real receiver of notices."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Server:
    """An HTTP server on a loopback port. `reply` gives status and body of a request's JSON; `keys`
    holds the Authorization of each. `page` is what a GET brings, None: 404.
    """

    def __init__(self, reply: Callable[[dict[str, Any]], tuple[int, object]]) -> None:
        self.reply = reply
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.page: Callable[[], str] | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.got.append(body)
                server.paths.append(self.path)
                server.keys.append(self.headers["Authorization"])
                status, answer = server.reply(body)
                raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                if status in (301, 302):
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self) -> None:
                raw = b"" if server.page is None else server.page().encode()
                self.send_response(404 if server.page is None else 200)
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

    def right(self) -> bool:
        """Whether the request that is answered now has the engine's own key."""
        return self.keys[-1:] == ["Bearer sk-its-own"]

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


def http_answer(status: int, document: object = None) -> bytes:
    """A whole answer of HTTP/1.0, without a body where there is no document."""
    raw = b"" if document is None else json.dumps(document).encode()
    return f"HTTP/1.0 {status} said\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


class DockerSocket(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A server on a unix socket: `reply` gives the bytes for `METHOD /path`."""

    daemon_threads = True

    def __init__(self, path: Path, reply: Callable[[str], bytes]) -> None:
        self.seen: list[str] = []
        docker = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = self.rfile.readline().decode().rpartition(" ")[0]
                while self.rfile.readline().strip():
                    pass
                docker.seen.append(asked)
                self.wfile.write(reply(asked))

        super().__init__(str(path), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@contextmanager
def docker_socket(path: Path, reply: Callable[[str], bytes]) -> Iterator[DockerSocket]:
    """A stand-in for docker's socket for the time of a block."""
    server = DockerSocket(path, reply)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        path.unlink()
