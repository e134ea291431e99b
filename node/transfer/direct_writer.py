"""Where the blocks of a transfer go: the end of a file, past the page cache where that is possible.

150 GB of weights that pass through the page cache push out everything else, and on a machine whose
GPU shares the memory they are taken from what the engine asks for (incident C11).
"""

from __future__ import annotations

import errno
import fcntl
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from node.transfer import protocol


class Sink:
    """A file that is written from `offset` on, made where it is not there; a context manager.

    `dir_fd`: the folder that `path` is in, where it is a bare name.
    `direct`: try to write past the page cache (O_DIRECT). What cannot be written so, because the
    filesystem does not do it or the end of a file is no whole sector, goes through the cache. Such
    a write waits for the disk, so a thread does it while the next block comes: one block at most is
    on its way, and what fails is raised by the next write, or at the end.
    """

    def __init__(self, path: str, offset: int, direct: bool, dir_fd: int | None = None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = -1
        self._writer = ThreadPoolExecutor(1) if direct else None
        self._pending: Future[None] | None = None
        self._direct = direct and hasattr(os, "O_DIRECT")
        if self._direct:
            try:
                self._fd = os.open(path, flags | os.O_DIRECT, 0o600, dir_fd=dir_fd)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = False
        if self._fd < 0:
            self._fd = os.open(path, flags, 0o600, dir_fd=dir_fd)
        os.lseek(self._fd, offset, os.SEEK_SET)

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self._settle()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
            os.close(self._fd)

    @property
    def direct(self) -> bool:
        """Gives whether the next block is tried past the page cache. Raises OSError."""
        self._settle()
        return self._direct

    def write(self, block: protocol.Bytes) -> None:
        """Takes a block, which stays as it is until the next call has returned. Raises OSError."""
        self._settle()
        if self._writer is None:
            self._whole(block)
        else:
            self._pending = self._writer.submit(self._whole, block)

    def _settle(self) -> None:
        """Waits for the block that is on its way. Raises OSError."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _whole(self, block: protocol.Bytes) -> None:
        left = memoryview(block)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._cached()

    def _cached(self) -> None:
        """From here on through the page cache: the rest is not aligned as the disk wants it."""
        self._direct = False
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
