"""Locks of the program: flock on a file or a folder, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from node.core.errors import NodeError

_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
POLL_S = 0.05
# how much of a holder's text is read
TEXT_BYTES = 1000


class FileLock:
    """One lock as a context manager; a subclass says where it lies and what a refusal tells.

    Waits at most `wait_s` seconds, then raises what `refused` gives.
    """

    # the holder's text stands in the file while it is held
    tells = False

    def __init__(self, wait_s: float = 2.0, shared: bool = False) -> None:
        self.wait_s = wait_s
        self.mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self.fd = -1

    def path(self) -> str:
        """Gives the file, made when it is missing, or the folder; makes the folders above it."""
        raise NotImplementedError

    def refused(self, said: str) -> NodeError:
        """Gives the error when somebody else holds it; `said` is what that one wrote, or ""."""
        raise NotImplementedError

    def text(self) -> str:
        """Gives what is written into the file for those who wait (`tells`)."""
        return ""

    def __enter__(self) -> FileLock:
        path = self.path()
        self.fd = os.open(path, _FOLDER if os.path.isdir(path) else _FILE, 0o600)
        deadline = time.monotonic() + self.wait_s
        while not _taken(self.fd, self.mode):
            if time.monotonic() >= deadline:
                said = _said(self.fd)
                os.close(self.fd)
                raise self.refused(said)
            time.sleep(POLL_S)
        if self.tells:
            # the text is only information: without room for it (a full disk) flock is the lock
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, 0)
                os.pwrite(self.fd, self.text().encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self.tells:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, 0)
        os.close(self.fd)


def _taken(fd: int, mode: int) -> bool:
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _said(fd: int) -> str:
    try:
        return os.pread(fd, TEXT_BYTES, 0).decode("utf-8", "replace")
    except IsADirectoryError:
        return ""


def held_by(path: str, shared: bool = True) -> str | None:
    """Gives what the holder of the lock wrote ("" for nothing), None when it is free; writes
    nothing. With `shared` those who hold it shared do not count.

    It tries flock for an instant; those who want to have it try again for longer.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _taken(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX) else _said(fd)
    finally:
        os.close(fd)
