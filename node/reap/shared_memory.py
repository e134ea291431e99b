"""shm: remove the engine's shared memory segments that no process maps or has open."""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

from node.change import journal, transaction
from node.core import proc, validate
from node.core.errors import Json
from node.rules.shm_names import is_engines

FOLDER = "/dev/shm"
# how long `shm` waits for young segments to be old enough
WAIT_S = 5.0
_GONE = " (deleted)"
_YOUNG = "s old: one that is being made is not mapped yet"


class Segment(NamedTuple):
    """A file of FOLDER as it was seen; `age_s` is since its last change of any kind."""

    name: str
    inode: int
    size: int
    uid: int
    age_s: float


class Users(NamedTuple):
    """Who uses which inode, and the processes whose maps or files cannot be read."""

    pids: dict[int, set[int]]
    unreadable: list[int]


def segments(fd: int) -> list[Segment]:
    """Gives the engine's segments in the opened folder, by name; links are none."""
    found: list[Segment] = []
    now = time.time()
    for name in sorted(filter(is_engines, os.listdir(fd))):
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(info.st_mode):
            age = now - max(info.st_mtime, info.st_ctime)
            found.append(Segment(name, info.st_ino, info.st_size, info.st_uid, age))
    return found


def users(fd: int, wanted: set[int]) -> Users:
    """Gives the processes that map or have open one of these inodes of the folder's device."""
    device = os.fstat(fd).st_dev
    column = b"%02x:%02x" % (os.major(device), os.minor(device))
    found = Users({inode: set() for inode in wanted}, [])
    for pid in proc.pids():
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                raw = file.read()
            numbers = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            # some sandboxes hide pid 1, even from root; init maps no engine's segment
            found.unreadable.extend([pid] if pid != 1 else [])
            continue
        except OSError:
            continue  # it has ended
        for line in raw.splitlines() if column in raw else []:
            fields = line.split(None, 5)
            if len(fields) > 4 and fields[3] == column and int(fields[4]) in wanted:
                found.pids[int(fields[4])].add(pid)
        for number in numbers:
            inode = _opened_inode(pid, number, device)
            if inode in wanted:
                found.pids[inode].add(pid)
    return found


def _opened_inode(pid: int, number: str, device: int) -> int:
    """Gives the inode of a descriptor that points to a file of the device, else 0."""
    path = f"/proc/{pid}/fd/{number}"
    try:
        target = os.readlink(path)
        if target.endswith(_GONE) or not is_engines(os.path.basename(target)):
            return 0
        info = os.stat(path)
    except OSError:
        return 0
    return info.st_ino if info.st_dev == device else 0


def _why_kept(one: Segment, used: Users, min_age_s: float) -> str:
    """Gives why a segment is kept, "" when it may go."""
    if used.unreadable:
        return f"whether pid {used.unreadable[0]} maps it cannot be read"
    pids = sorted(used.pids[one.inode])
    if pids:
        return f"in use by pid {', '.join(map(str, pids))}"
    if one.age_s < min_age_s:
        return f"{one.age_s:.1f} {_YOUNG}"
    return ""


def shm(request: Json) -> Json:
    """Remove unused segments; gives removed, kept (each with why), freed_bytes and change.

    Raises NodeError for a bad request, a held lock or another open change.
    """
    body = validate.keys(request, "request", ("change", "min_age_s", "dry"))
    header = body.get("change")
    checked = None if header is None else journal.parse_change(header)
    min_age_s = validate.number(body.get("min_age_s", 5), "min_age_s", 0, 86400)
    dry = validate.boolean(body.get("dry", False), "dry")
    with transaction.opened(None if dry else checked, "shm") as log:
        fd = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _clean(fd, min_age_s, dry, log)
        finally:
            os.close(fd)


def _clean(fd: int, min_age_s: float, dry: bool, log: transaction.Transaction) -> Json:
    """Do it in the opened folder."""
    found = segments(fd)
    used = users(fd, {one.inode for one in found})
    kept = {one.name: _why_kept(one, used, min_age_s) for one in found}
    left_s = [min_age_s - one.age_s for one in found if kept[one.name].endswith(_YOUNG)]
    if left_s and max(left_s) <= WAIT_S and not dry:  # an engine that has just ended leaves such
        time.sleep(max(left_s) + 0.1)
        found = segments(fd)
        used = users(fd, {one.inode for one in found})
        kept = {one.name: _why_kept(one, used, min_age_s) for one in found}
    going = [one for one in found if not kept[one.name]]
    removed: list[Segment] = going
    if going and not dry:
        entry = log.begin("shm", segments=[one._asdict() for one in going], removed=[])
        used = users(fd, {one.inode for one in going})  # again, right before they go
        removed = []
        for one in going:
            kept[one.name] = _why_kept(one, used, 0) or _unlink(fd, one)
            removed += [] if kept[one.name] else [one]
        entry.update(state="done", removed=[one.name for one in removed])
        log.write()
    return {
        "removed": [_row(one) for one in removed],
        "kept": [{**_row(one), "why": kept[one.name]} for one in found if kept[one.name]],
        "freed_bytes": sum(one.size for one in removed),
        "change": log.change_id,
    }


def _unlink(fd: int, one: Segment) -> str:
    """Remove a segment when its name is still the file that was judged; gives why not, or ""."""
    try:
        if os.stat(one.name, dir_fd=fd, follow_symlinks=False).st_ino != one.inode:
            return "another segment has its name now"
        os.unlink(one.name, dir_fd=fd)
    except FileNotFoundError:
        return "gone meanwhile"
    return ""


def _row(one: Segment) -> Json:
    """Gives a segment for the answer."""
    return {"name": one.name, "size": one.size, "uid": one.uid, "inode": one.inode}
