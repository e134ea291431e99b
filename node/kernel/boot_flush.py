"""Bring what was written below /boot to where GRUB sees it: GRUB replays no journal.

A rename that stands only in the filesystem's journal is invisible to GRUB after a power cut, or
half visible. Freezing and thawing the filesystem writes the journal out (as OSTree does).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select

_FREEZE = 0xC0045877
_THAW = 0xC0045878
# a frozen root filesystem stops the whole machine: nobody may keep it for longer
_LIMIT_S = 10.0


def flush(folder: str) -> bool:
    """Flush the filesystem of a folder; gives whether its journal was written out, too."""
    os.sync()
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _frozen_once(fd)
    finally:
        os.close(fd)


def _frozen_once(fd: int) -> bool:
    """Freeze and thaw; a second process thaws when this one dies in between."""
    read, write = os.pipe()
    guard = os.fork()
    if guard == 0:
        try:
            os.close(write)
            select.select([read], [], [], _LIMIT_S)
            with contextlib.suppress(OSError):
                fcntl.ioctl(fd, _THAW, 0)
        finally:
            os._exit(0)
    os.close(read)
    done = False
    try:
        # another filesystem than ext4, XFS and their like, or no right to: sync was all there is
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, _FREEZE, 0)
            done = True
            fcntl.ioctl(fd, _THAW, 0)
    finally:
        os.close(write)
        os.waitpid(guard, 0)
    return done
