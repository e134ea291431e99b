"""The unit's own container: removed and stopped through docker's socket, quietly."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import CannotRead, NodeError
from node.docker import api, containers


class Docker(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A stand-in for docker's socket (labelled): gives the statuses in turn."""

    daemon_threads = True

    def __init__(self, path: Path, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.seen: list[str] = []
        docker = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                docker.seen.append(f"{self.command} {self.path}")
                status = docker.statuses.pop(0) if len(docker.statuses) > 1 else docker.statuses[0]
                raw = b"" if status == 204 else json.dumps({"message": "busy"}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

            def address_string(self) -> str:
                return "unix"

        super().__init__(str(path), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture
def docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., contextlib.AbstractContextManager[Docker]]]:
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(api, "SOCKET", str(path))

    @contextlib.contextmanager
    def running(*statuses: int) -> Iterator[Docker]:
        server = Docker(path, *statuses)
        try:
            yield server
        finally:
            server.shutdown()
            server.server_close()
            path.unlink()

    yield running


def test_removing_a_container(docker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with docker(404) as none:
        assert containers.remove("rigbook-engine") is False
        assert none.seen == ["DELETE /containers/rigbook-engine?force=true"]
    with docker(204):
        assert containers.remove("rigbook-engine") is True
    with docker(409, 404) as going:
        assert containers.remove("rigbook-engine") is True and len(going.seen) == 2
    monkeypatch.setattr(containers, "REMOVE_TIMEOUT_S", 0.1)
    with docker(500), pytest.raises(NodeError, match="docker rm -f rigbook-engine: 500 busy"):
        containers.remove("rigbook-engine")


def test_stopping_a_container(docker: Any) -> None:
    for status, stopped in ((204, True), (304, False), (404, False)):
        with docker(status) as asked:
            assert containers.stop("rigbook-engine", 30) is stopped
            assert asked.seen == ["POST /containers/rigbook-engine/stop?t=30"]
    with docker(500), pytest.raises(NodeError, match="docker stop"):
        containers.stop("rigbook-engine", 30)


def test_docker_that_is_not_there(docker: Any) -> None:
    assert containers.answers() is False
    with pytest.raises(CannotRead, match=r"docker at .*docker.sock"):
        containers.remove("x")
    with docker(200):
        assert containers.answers() is True
