"""The unit's own container: removed and stopped through docker's socket, quietly."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from node.core.errors import CannotRead, NodeError
from node.docker import api, containers
from tests.unit.node.support.servers import DockerSocket, docker_socket, http_answer

Docker = Callable[..., AbstractContextManager[DockerSocket]]
PING = "GET /_ping"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Starts a stand-in for docker's socket that gives these statuses in turn, after each ping."""
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(api, "SOCKET", str(path))

    def running(*statuses: int) -> AbstractContextManager[DockerSocket]:
        left = list(statuses)

        def reply(asked: str) -> bytes:
            if asked == PING:
                return http_answer(200, None)
            status = left.pop(0) if len(left) > 1 else left[0]
            return http_answer(status, None if status == 204 else {"message": "busy"})

        return docker_socket(path, reply)

    return running


def test_removing_a_container(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    with docker(404) as none:
        assert containers.remove("rigbook-engine") is False
        assert none.seen == [PING, "DELETE /containers/rigbook-engine?force=true"]
    with docker(204):
        assert containers.remove("rigbook-engine") is True
    with docker(409, 404) as going:
        assert containers.remove("rigbook-engine") is True and len(going.seen) == 3
    monkeypatch.setattr(containers, "REMOVE_TIMEOUT_S", 0.1)
    with docker(500), pytest.raises(NodeError, match="docker rm -f rigbook-engine: 500 busy"):
        containers.remove("rigbook-engine")


def test_stopping_a_container(docker: Docker) -> None:
    for status, stopped in ((204, True), (304, False), (404, False)):
        with docker(status) as asked:
            assert containers.stop("rigbook-engine", 30) is stopped
            assert asked.seen == [PING, "POST /containers/rigbook-engine/stop?t=30"]
    with docker(500), pytest.raises(NodeError, match="docker stop"):
        containers.stop("rigbook-engine", 30)


def test_docker_that_is_not_there(docker: Docker) -> None:
    assert containers.answers() is False
    with pytest.raises(CannotRead, match=r"docker at .*docker.sock"):
        containers.is_running("x")
    with pytest.raises(CannotRead, match="docker does not answer"):
        containers.remove("x")
    with docker(200):
        assert containers.answers() is True


@pytest.mark.parametrize("change", [containers.remove, lambda name: containers.stop(name, 30)])
def test_a_docker_that_died_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], bool]
) -> None:
    """docker.socket takes connections meanwhile; docker's restart waits for the caller's unit."""
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(api, "SOCKET", str(path))
    monkeypatch.setattr(containers, "PING_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(path))
        nobody.listen()
        started = time.monotonic()
        with pytest.raises(CannotRead, match="docker does not answer"):
            change("rigbook-engine")
    assert time.monotonic() - started < 10
