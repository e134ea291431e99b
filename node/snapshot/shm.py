"""The files in /dev/shm and the processes that map or open them."""

from __future__ import annotations

import os
import stat

from node.core import proc
from node.core.errors import CannotRead, Json

FOLDER = "/dev/shm"


def read(open_files: list[proc.Fd]) -> list[Json]:
    """Gives every regular file of /dev/shm with its mappers' pids.

    A segment without mappers may be removed by someone who reads this, so it is an error, not an
    empty list, when the maps of a process cannot be read.
    """
    segments: dict[int, Json] = {}
    users: dict[int, set[int]] = {}
    for entry in os.scandir(FOLDER):
        try:
            info = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(info.st_mode):
            users[info.st_ino] = set()
            segments[info.st_ino] = {
                "name": entry.name,
                "size": info.st_size,
                "uid": info.st_uid,
                "inode": info.st_ino,
                "mtime": info.st_mtime,
            }
    if segments:
        _add_openers(users, open_files)
        _add_mappers(users)
    for inode, segment in segments.items():
        segment["mappers"] = sorted(users[inode])
    return sorted(segments.values(), key=lambda segment: str(segment["name"]))


def _add_openers(users: dict[int, set[int]], open_files: list[proc.Fd]) -> None:
    """Add the pids that hold a segment open (a descriptor that is not mapped)."""
    device = os.stat(FOLDER).st_dev
    for pid, number, target in open_files:
        if "/dev/shm/" not in target:
            continue
        try:
            info = os.stat(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if info.st_dev == device and info.st_ino in users:
            users[info.st_ino].add(pid)


def _add_mappers(users: dict[int, set[int]]) -> None:
    """Add the pids that map a segment, found by device and inode: paths differ by container."""
    device = os.stat(FOLDER).st_dev
    wanted = b"%02x:%02x" % (os.major(device), os.minor(device))
    denied = 0
    for pid in proc.pids():
        try:
            raw = proc.read(f"/proc/{pid}/maps")
        except PermissionError:
            # some sandboxes hide pid 1, even from root; init maps no engine's segment
            denied += pid != 1
            continue
        except OSError:
            continue
        if wanted not in raw:
            continue
        for line in raw.splitlines():
            fields = line.split(None, 5)
            if len(fields) > 4 and fields[3] == wanted and int(fields[4]) in users:
                users[int(fields[4])].add(pid)
    if denied:
        raise CannotRead(f"the maps of {denied} processes cannot be read: run as root")
