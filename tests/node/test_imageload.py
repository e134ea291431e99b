"""What goes into docker through its socket: whose fault is told, and that nobody is waited for."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import imageload
from node.errors import NodeError
from node.snapshot import docker


class HungDocker:
    """A stand-in for docker's socket (labelled): takes every connection, and never says a word."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                self.connections.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        """No more connections; those that are open end."""
        for sock in (self._listener, *self.connections):
            sock.close()


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HungDocker]:
    """A docker that hangs, in place of the host's."""
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(docker, "SOCKET", str(path))
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    made = HungDocker(path)
    yield made
    made.close()


def nothing(*_: object) -> None:
    """Is told and does nothing."""


@pytest.mark.parametrize(
    ("number", "code", "remedy"), [(errno.ENOSPC, "no_room", "df -h"), (errno.EIO, "io", "dmesg")]
)
def test_a_spool_that_fails_is_not_laid_at_dockers_door(
    hung: HungDocker, number: int, code: str, remedy: str
) -> None:
    """The thread that fetches met it; the upload, which waits for its bytes, tells it."""
    growing = imageload.Growing()
    growing.failed(OSError(number, "the disk said so"))
    with pytest.raises(NodeError, match=r"the spool .*the disk said so") as caught:
        imageload.import_layer(growing.read(0, "/nonexistent", 10), 5, nothing, nothing)
    assert caught.value.code == code and remedy in caught.value.remedy
    assert "docker" not in str(caught.value)
