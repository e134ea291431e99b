"""Folders that somebody else may change meanwhile: entered by descriptor, no link followed.

Weights belong to the login user, and node is root: a link that he puts in place of a folder, before
or while files come, must not lead root elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

from node.core.errors import NodeError

# How much of a transfer goes in one piece; apart, because docker's layers need no more of it.

BLOCK = 1 << 20


_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# as the kernel's own limit
_MAX_LINKS = 40


class Owner(NamedTuple):
    """Who owns what is made."""

    uid: int
    gid: int


def owner_of(name: str) -> Owner:
    """Gives a user's ids. Raises NodeError (`no_user`)."""
    try:
        row = pwd.getpwnam(name)
    except KeyError:
        raise NodeError(
            f"there is no user {name} here", "no_user", f"getent passwd {name}"
        ) from None
    return Owner(row.pw_uid, row.pw_gid)


@contextlib.contextmanager
def folder(path: str, owner: Owner | None = None) -> Iterator[int]:
    """Gives a descriptor of a folder; with `owner`, what is missing of it is made.

    Links in what is there are followed: the path is the operator's own word. Raises NodeError
    (`no_folder`, `not_a_folder`).
    """
    there = os.path.abspath(path)
    missing = []
    while owner is not None and not os.path.lexists(there):
        there, name = os.path.split(there)
        missing.append(name)
    try:
        fd = os.open(there, _FLAGS)
    except FileNotFoundError:
        raise NodeError(f"{path} is not there", "no_folder") from None
    except NotADirectoryError:
        raise NodeError(
            f"{there} is not a folder", "not_a_folder", f"ls -ld {shlex.quote(there)}"
        ) from None
    try:
        with inside(fd, "/".join(reversed(missing)), path, owner) as deepest:
            yield deepest
    finally:
        os.close(fd)


@contextlib.contextmanager
def private(path: str) -> Iterator[int]:
    """Gives a descriptor of a folder that only we may enter, whoever owns the one above it.

    Raises NodeError (`unsafe_folder`) when another one, or a link, lies under its name.
    """
    try:
        fd = os.open(path, _FLAGS | os.O_NOFOLLOW)
    except OSError as error:
        raise NodeError(
            f"{path}: {error.strerror}", "unsafe_folder", f"ls -ld {shlex.quote(path)}"
        ) from None
    try:
        info = os.fstat(fd)
        if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise NodeError(f"{path} is not the folder that was made there: somebody replaced it",
                            "unsafe_folder", f"ls -ld {shlex.quote(path)}")  # fmt: skip
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def inside(fd: int, relative: str, shown: str, owner: Owner | None = None) -> Iterator[int]:
    """Gives a descriptor of a folder below `fd`; with `owner`, what is missing of it is made.

    `shown` is what it is called in messages. Raises NodeError (`not_a_folder`) for a link or a
    file on the way, FileNotFoundError where something is missing and not to be made.
    """
    here = os.dup(fd)
    try:
        for name in filter(None, relative.split("/")):
            made = False
            if owner is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=here)
                    made = True
            try:
                deeper = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=here)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                info = os.stat(name, dir_fd=here, follow_symlinks=False)
                what = "a link" if stat.S_ISLNK(info.st_mode) else "no folder"
                raise NodeError(f"{shown}: {name} is {what}: nothing is written through it",
                                "not_a_folder",
                                f"ls -ld {shlex.quote(shown)}") from None  # fmt: skip
            os.close(here)
            here = deeper
            if made and owner is not None:
                os.fchown(here, owner.uid, owner.gid)
        yield here
    finally:
        os.close(here)


def open_beneath(root: str, relative: str) -> int:
    """Gives a descriptor of a regular file below a folder, its links followed as long as they stay
    below it (as openat2's RESOLVE_BENEATH does; an absolute one may name the folder itself).

    Raises FileNotFoundError, and OSError: EXDEV for a link that leads out, ELOOP, EINVAL for what
    is no regular file, without having opened it.
    """
    todo = list(reversed(relative.split("/")))
    links = 0
    here = [os.open(root, _FLAGS)]
    try:
        while todo:
            name = todo.pop()
            if name == ".." and len(here) == 1:
                raise OSError(errno.EXDEV, "leads out of its folder", relative)
            if name == "..":
                os.close(here.pop())
            if name in ("", ".", ".."):
                continue
            mode = os.stat(name, dir_fd=here[-1], follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                links += 1
                target = os.readlink(name, dir_fd=here[-1])
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
                if target.startswith("/"):
                    if not target.startswith(root + "/"):
                        raise OSError(errno.EXDEV, "leads out of its folder", relative)
                    while len(here) > 1:
                        os.close(here.pop())
                    target = target[len(root) :]
                todo += reversed(target.split("/"))
            elif todo:
                here.append(os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=here[-1]))
            elif stat.S_ISREG(mode):
                return _regular(name, here[-1])
        raise OSError(errno.EINVAL, "is no regular file", relative)
    finally:
        for fd in here:
            os.close(fd)


def _regular(name: str, folder: int) -> int:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is no regular file", name)
    return fd


# Reading files of many GB without leaving them in the page cache.
#
# On a machine whose GPU shares the memory, what a transfer leaves there is taken from what the
# engine
# asks for (incident C11). The files may be those of a live engine: pages that were in the cache
# when
# the reading began are left there, and pages that a process has mapped the kernel itself keeps.
# What
# another process reads into the cache meanwhile may go: it costs that one a read, no more.

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
