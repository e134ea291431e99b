"""HTTP over the Docker engine's socket: one call, quickly, and a connection that sends a stream."""

from __future__ import annotations

import io
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

LOOK_EVERY_S = 1.0
Look = Callable[[], None]


def exchange(
    socket_path: str, method: str, path: str, timeout_s: float, body: bytes = b""
) -> tuple[int, bytes]:
    """Gives status and body of one call; `body` is JSON, or nothing.

    Raises OSError, and ValueError for an answer that is cut, or none.
    """
    # HTTP/1.0: no chunks, and the end of the stream is the answer's
    ask = f"{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    ask += "Content-Type: application/json\r\n\r\n" if body else "\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(socket_path)
        connection.sendall(ask.encode("ascii") + body)
        raw = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, blank, said = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(None, 2)
    if not blank or len(words) < 2 or not words[0].startswith("HTTP/"):
        raise ValueError("no HTTP answer")
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length" and int(value) != len(said):
            raise ValueError("the answer is cut")
    return int(words[1]), said


def connect(path: str, timeout_s: float, look: Look) -> Any:
    """Gives an http.client connection to a unix socket.

    `look` is called about once a second while docker keeps it waiting, and ends that by what it
    raises. `timeout_s` is the longest that docker may say, and take, nothing. Raises OSError.
    """
    # here: it imports ssl and email, which would cost every snapshot 18 ms
    import http.client

    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = _Looking(timeout_s, look)
    connection.sock.connect(path)
    return connection


class _Looking(socket.socket):
    """A unix socket that looks around while it waits. Raises socket.timeout, and what `look` does.

    A timeout of the socket itself would not do: what was sent by then, and what was read, is lost.
    """

    def __init__(self, timeout_s: float, look: Look) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._wait_s, self._look = timeout_s, look
        self.settimeout(timeout_s)

    def sendall(self, data: Any, flags: int = 0) -> None:
        left = memoryview(data)
        while left:
            wait(self.fileno(), select.POLLOUT, self._wait_s, self._look)
            left = left[self.send(left, flags) :]

    def makefile(self, *_: Any, **__: Any) -> Any:
        # A descriptor of its own: http.client closes the socket while the answer is still read.
        return io.BufferedReader(_Answer(os.dup(self.fileno()), self._wait_s, self._look))


class _Answer(io.RawIOBase):
    """What comes out of a descriptor, which it closes in the end."""

    def __init__(self, fd: int, timeout_s: float, look: Look) -> None:
        self._fd, self._wait_s, self._look = fd, timeout_s, look

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        wait(self._fd, select.POLLIN, self._wait_s, self._look)
        return os.readv(self._fd, [into])

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


def wait(fd: int, event: int, timeout_s: float, look: Look) -> None:
    """Waits until a descriptor can be read or written, and looks about once a second.

    Raises socket.timeout, and what `look` raises.
    """
    poll = select.poll()
    poll.register(fd, event)
    deadline = time.monotonic() + timeout_s
    while True:
        look()
        if poll.poll(LOOK_EVERY_S * 1000):
            return
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
