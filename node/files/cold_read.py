"""Reading files of many GB without leaving them in the page cache.

On a machine whose GPU shares the memory, what a transfer leaves there is taken from what the engine
asks for (incident C11). The files may be those of a live engine: pages that were in the cache when
the reading began are left there, and pages that a process has mapped the kernel itself keeps. What
another process reads into the cache meanwhile may go: it costs that one a read, no more.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

# What of a file may be in the cache at most because of its reading.
WINDOW = 64 << 20
# Readahead of a large disk array; behind the last byte that was read it is dropped as well.
_AHEAD = 32 << 20
_MAPPED = 1 << 30
_PAGE = mmap.PAGESIZE
Span = tuple[int, int]


def _residency(fd: int, start: int, size: int) -> bytes | None:
    """Gives a byte a page, 1 for one that is in the page cache; None where that is not told."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                          ctypes.c_int, ctypes.c_int64]  # fmt: skip
    at = libc.mmap(None, size, 0, mmap.MAP_SHARED, fd, start)
    if at in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        vector = ctypes.create_string_buffer(-(-size // _PAGE))
        told = libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), vector)
        return None if told else vector.raw
    finally:
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))


def _absent(fd: int, size: int) -> list[Span]:
    """Gives the parts of a file that are not in the page cache, in order, by offset."""
    found: list[Span] = []
    for start in range(0, size, _MAPPED):
        there = _residency(fd, start, min(_MAPPED, size - start))
        at = 0
        while there is not None and (at := there.find(b"\0", at)) >= 0:
            end = there.find(b"\1", at)
            end = len(there) if end < 0 else end
            found.append((start + at * _PAGE, start + end * _PAGE))
            at = end
    return found


class Passing:
    """Drops from the page cache what the reading of an open file brings there; a context manager.

    `upto` is told how far the reading is.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._size = fd, os.fstat(fd).st_size
        self._absent = _absent(fd, self._size)
        self._dropped = self._read = 0

    def __enter__(self) -> Passing:
        return self

    def __exit__(self, *_: Any) -> None:
        self._drop(min(self._size, self._read + _AHEAD))

    def upto(self, offset: int) -> None:
        """Notes that the file is read up to an offset."""
        self._read = offset
        if offset - self._dropped >= WINDOW:
            # The last page may be half read.
            self._drop(offset - offset % _PAGE)

    def _drop(self, end: int) -> None:
        while self._absent and self._absent[0][0] < end:
            start, stop = self._absent.pop(0)
            if stop > end:
                self._absent.insert(0, (end, stop))
                stop = end
            os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_DONTNEED)
        self._dropped = max(self._dropped, end)
