"""A whole HTTP client for the Docker engine's socket; what only reads has its own, quicker one."""

from __future__ import annotations

import http.client
import io
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

LOOK_EVERY_S = 1.0
Look = Callable[[], None]


class Connection(http.client.HTTPConnection):
    """HTTP over a unix socket.

    `look` is called about once a second while docker keeps it waiting, and ends that by what it
    raises. `timeout_s` is the longest that docker may say, and take, nothing.
    """

    def __init__(self, path: str, timeout_s: float, look: Look | None = None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path, self._timeout_s, self._look = path, timeout_s, look

    def connect(self) -> None:
        if self._look is None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self._timeout_s)
        else:
            self.sock = _Looking(self._timeout_s, self._look)
        self.sock.connect(self._path)


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
