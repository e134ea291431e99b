"""Room that is kept for the way back: files that whoever goes back on a full disk removes first.

Several files, because a disk can run out of inodes too: each of them frees one.
"""

from __future__ import annotations

import contextlib
import os

from node.files import state_dir

# what an undo writes beside what it frees: the journal's file twice (1 MiB of `blob`, 200 steps),
# the largest file that a patch tool may change (4 MiB), and what others take meanwhile
BYTES = 16 << 20
FILES = 8


def size() -> int:
    """Gives the ballast's bytes: BYTES; in another state folder than the default one (tests) what
    RIGBOOK_BALLAST says, else none."""
    if state_dir.root() == state_dir.DEFAULT_ROOT:
        return BYTES
    return int(os.environ.get("RIGBOOK_BALLAST") or 0)


def folder() -> str:
    """Gives the folder of its files."""
    return os.path.join(state_dir.root(), "ballast")


def _lacks(room: int) -> bool:
    """Gives whether the disk of the state folder has less than `room` bytes, or too few inodes."""
    disk = os.statvfs(state_dir.root())
    # a file system that counts no inodes (btrfs) says 0 of 0
    return disk.f_bavail * disk.f_frsize < room or (disk.f_files > 0 and disk.f_favail < FILES)


def keep() -> None:
    """Make what is missing of it, where twice as much is free; a failure is none of its caller's.

    Allocated and not written: of a file system that cannot, glibc writes zeros.
    """
    part = size() // FILES
    if not part:
        return
    with contextlib.suppress(OSError):
        names = [os.path.join(folder(), str(n)) for n in range(FILES)]
        missing = [one for one in names if not _is_whole(one, part)]
        if not missing or _lacks(2 * size()):
            return
        os.makedirs(folder(), mode=0o700, exist_ok=True)
        _make(missing, part)


def _make(paths: list[str], part: int) -> None:
    for one in paths:
        fd = os.open(one, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, part)
        finally:
            os.close(fd)


def _is_whole(path: str, part: int) -> bool:
    """Gives whether a file of it is there with all its blocks."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return False
    return info.st_size >= part and info.st_blocks * 512 >= part


class Room:
    """Room for the way back, as a context manager under the host's lock: the ballast goes where
    the disk is full, and is made anew at the end where there is room again.

    Who writes only a line takes a few `files` of it and gives them back: the undo comes later.
    """

    def __init__(self, files: int = FILES) -> None:
        self.files = files
        self.lent: list[str] = []

    def __enter__(self) -> Room:
        with contextlib.suppress(OSError):
            if _lacks(size()):
                for name in sorted(os.listdir(folder()))[: self.files]:
                    os.unlink(os.path.join(folder(), name))
                    self.lent.append(os.path.join(folder(), name))
        return self

    def __exit__(self, *_: object) -> None:
        if self.files < FILES:
            with contextlib.suppress(OSError):
                _make(self.lent, size() // FILES)
        keep()
