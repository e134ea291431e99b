"""The files and the disk room that the request names."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable

from node.core import masking, proc
from node.core.errors import Json
from node.rules.secret import SECRETS_PATH

MAX_CONTENT = 64 * 1024


def _hash(fd: int) -> tuple[str, bytes]:
    """Gives the sha256 of an open file and its first MAX_CONTENT + 1 bytes."""
    digest, head = hashlib.sha256(), b""
    while True:
        chunk = os.read(fd, 1 << 20)
        if not chunk:
            return digest.hexdigest(), head
        digest.update(chunk)
        if len(head) <= MAX_CONTENT:
            head = (head + chunk)[: MAX_CONTENT + 1]


def _text(head: bytes) -> str | None:
    """Gives the bytes as text, or None when they are too many or are not UTF-8 text."""
    if len(head) > MAX_CONTENT or b"\0" in head:
        return None
    try:
        return head.decode("utf-8")
    except UnicodeDecodeError:
        return None


def state(path: str) -> Json:
    """Gives one path's state; a link is not followed. A folder's size is its number of entries.

    Of a file that others may not read only an environment file's text is given, secrets masked;
    of the engine's secrets the names.
    """
    answer: Json = dict.fromkeys(("sha256", "size", "mode", "uid", "gid", "content"))
    answer["path"] = path
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {**answer, "kind": "absent"}
    answer.update(mode=f"{stat.S_IMODE(info.st_mode):04o}", uid=info.st_uid, gid=info.st_gid)
    if stat.S_ISLNK(info.st_mode):
        return {**answer, "kind": "link"}
    if stat.S_ISDIR(info.st_mode):
        return {**answer, "kind": "directory", "size": len(os.listdir(path))}
    if not stat.S_ISREG(info.st_mode):
        return {**answer, "kind": "other"}
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        answer["size"] = os.fstat(fd).st_size
        answer["sha256"], head = _hash(fd)
    finally:
        os.close(fd)
    text = _text(head)
    private = not info.st_mode & stat.S_IROTH
    secrets = os.path.basename(path) == os.path.basename(SECRETS_PATH)
    if text and (private or secrets):
        text = masking.masked_env_file(text, every=secrets)
    answer["content"] = text
    return {**answer, "kind": "file"}


def read(paths: Iterable[str]) -> list[Json]:
    """Gives the states of the named paths, in their order."""
    found = []
    for path in paths:
        with proc.waiting_for(path):
            found.append(state(path))
    return found


def _mount_of(path: str) -> str:
    """Gives the mount point that holds an existing path (it ends at the root folder)."""
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def disks(paths: Iterable[str]) -> list[Json]:
    """Gives the room, in bytes, where each path is or would be."""
    found: list[Json] = []
    for path in paths:
        there = path
        with proc.waiting_for(path):
            while not os.path.exists(there):
                there = os.path.dirname(there)
            room, mount = os.statvfs(there), _mount_of(there)
        found.append(
            {
                "path": path,
                "mount": mount,
                "total": room.f_blocks * room.f_frsize,
                "free": room.f_bavail * room.f_frsize,
                "inodes_free": room.f_favail,
                "read_only": bool(room.f_flag & os.ST_RDONLY),
            }
        )
    return found
