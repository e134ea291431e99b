"""What goes into docker through its socket: whose fault is told, and that nobody is waited for."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.core.errors import NodeError
from node.docker import api, http
from node.image import load as image_load


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A stand-in for docker's socket (labelled): connections come in, and nobody says a word."""
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(api, "SOCKET", str(path))
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen()
        yield made


def nothing(*_: object) -> None:
    """Is told and does nothing."""


@pytest.mark.parametrize(
    ("number", "code", "remedy"), [(errno.ENOSPC, "no_room", "df -h"), (errno.EIO, "io", "dmesg")]
)
def test_a_spool_that_fails_is_not_laid_at_dockers_door(
    docker: socket.socket, number: int, code: str, remedy: str
) -> None:
    """The thread that fetches met it; the upload, which waits for its bytes, tells it."""
    growing = image_load.GrowingLayers()
    growing.failed(OSError(number, "the disk said so"))
    with pytest.raises(NodeError, match=r"the spool .*the disk said so") as caught:
        image_load.import_layer(growing.read(0, "/nonexistent", 10), 5, nothing, nothing, nothing)
    assert caught.value.code == code and remedy in caught.value.remedy
    assert "docker" not in str(caught.value)


class Gone(Exception):
    """What the look raises here once nobody waits any more."""


def looking(after: int) -> tuple[list[int], Callable[[], None]]:
    """A look that ends the waiting at its n-th call, and its calls so far."""
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) >= after:
            raise Gone

    return looks, look


@pytest.mark.parametrize("size", [100, 64 << 20])
def test_a_docker_that_hangs_keeps_nobody_whom_nobody_waits_for(
    docker: socket.socket, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the answer is waited for (100 bytes), and while docker takes no more of the upload."""
    monkeypatch.setattr(http, "LOOK_EVERY_S", 0.01)
    looks, look = looking(50)
    with pytest.raises(Gone):
        image_load.import_layer(iter([bytes(size)]), 60, nothing, nothing, look)
    assert len(looks) == 50


def test_a_docker_that_hangs_has_its_time_and_no_more(
    docker: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LOOK_EVERY_S", 0.01)
    with pytest.raises(NodeError, match="was not done in"):
        image_load.import_layer(iter([b"x"]), 0.1, nothing, nothing, nothing)


def test_a_giver_that_sends_nothing_keeps_nobody_whom_nobody_waits_for(tmp_path: Path) -> None:
    _, look = looking(2)
    with pytest.raises(Gone):
        next(image_load.GrowingLayers(look).read(0, str(tmp_path / "none"), 10))


def test_an_answer_is_read_whole_though_docker_closes_after_it(docker: socket.socket) -> None:
    """docker says why it takes no more, with `Connection: close`, in pieces."""

    def refuse() -> None:
        near, _ = docker.accept()
        near.recv(10)
        said = b'{"message": "no space left on device"}'
        head = f"HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: {len(said)}\r\n\r\n"
        for part in (head.encode()[:30], head.encode()[30:], said[:20], said[20:]):
            near.sendall(part)
            time.sleep(0.02)
        near.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    with pytest.raises(NodeError, match="docker load: no space left on device"):
        image_load.load(iter([b"x"]), 5, nothing, nothing, nothing)
    thread.join()
