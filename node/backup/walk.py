"""List a tree: every entry with what a restore has to bring back, and what shows an edit."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from node.core import proc
from node.core.errors import Json, NodeError

NS = 10**9
# tar's own letters
FILE, LINK, SYMLINK, FOLDER = "0", "1", "2", "5"
# one encoder for all lines: json.dumps with separators of its own makes one for each
_encode = json.JSONEncoder(separators=(",", ":")).encode
# what shows that an entry was edited: inode, mode, owner, size, mtime and ctime in ns
Stamp = tuple[int, int, int, int, int, int, int]


class Member(NamedTuple):
    """An entry as the payload holds it: its path from the tree's root ("." is the root itself).

    `link` is a symlink's target or the path of the member that a hard link shares; `mtime` is in
    nanoseconds, `xattrs` maps names to base64, `sha256` is of a file's bytes, holes being zeros
    ("" where nobody has read them yet).
    """

    path: str
    type: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: str
    xattrs: dict[str, str]
    sha256: str = ""

    def line(self) -> bytes:
        """Gives the member as its line of members.jsonl."""
        return _encode(self).encode("ascii") + b"\n"


def member(line: bytes) -> Member:
    """Gives the member of a line. Raises ValueError when it is not one."""
    row = json.loads(line.decode("ascii"))
    if not isinstance(row, list) or len(row) != len(Member._fields):
        raise ValueError("not a member")
    return Member(*row)


class Listing:
    """A walk over a tree.

    `stamps` by path and `lines` (of members.jsonl), both in the payload's order; `apparent` are
    the files' bytes, `room` those on a disk.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.lines: list[bytes] = []
        self.stamps: dict[str, Stamp] = {}
        self.apparent = 0
        self.room = 0
        self.setuid: list[str] = []
        self._shared: dict[tuple[int, int], str] = {}
        self._device = os.lstat(root).st_dev

    def members(self) -> Iterator[Member]:
        """Gives the members as they were listed; nobody has read their bytes yet."""
        return map(member, self.lines)

    def hashed(self, hashes: Iterable[str]) -> Iterator[bytes]:
        """Gives the lines with the hashes of the files' bytes, which come in the same order."""
        left = iter(hashes)
        for row in self.members():
            yield row._replace(sha256=next(left)).line() if row.type == FILE else row.line()

    def sha256(self) -> str:
        """Gives one hash over all stamps: equal for a tree in which nothing was touched."""
        digest = hashlib.sha256()
        for path in sorted(self.stamps):
            digest.update(f"{path!a} {self.stamps[path]}\n".encode("ascii"))
        return digest.hexdigest()

    def _is_mounted(self, path: str) -> bool:
        """Gives True for a file that is a mount point of its own, or where nobody can tell."""
        place = os.path.join(os.path.realpath(self.root), path)
        rows = proc.read_text("/proc/self/mountinfo").splitlines()
        # the kernel writes a blank, a tab, a newline and a backslash as octal digits
        points = {row.split()[4].encode().decode("unicode_escape") for row in rows}
        return not points or place in points

    def add(self, path: str, info: os.stat_result) -> None:
        """Take an entry in. Raises NodeError for what no installation holds."""
        kind = stat.S_IFMT(info.st_mode)
        mode = stat.S_IMODE(info.st_mode)
        # on an overlay only folders have the device number of the whole; files have their layer's
        if info.st_dev != self._device and (kind == stat.S_IFDIR or self._is_mounted(path)):
            raise NodeError(f"{self.root}/{path} is on another file system", "tree_mixed",
                            "back up only what lies on one file system")  # fmt: skip
        self.stamps[path] = stamp(info)
        size, link = 0, ""
        place = f"{self.root}/{path}"
        if kind == stat.S_IFREG:
            letter, size = FILE, info.st_size
        elif kind == stat.S_IFDIR:
            letter = FOLDER
        elif kind == stat.S_IFLNK:
            letter = SYMLINK
        else:
            raise NodeError(f"{self.root}/{path} is a device, a pipe or a socket", "tree_mixed",
                            "remove it: no installation holds one")  # fmt: skip
        if kind != stat.S_IFDIR and info.st_nlink > 1:
            first = self._shared.setdefault((info.st_dev, info.st_ino), path)
            if first != path:
                letter, size, link = LINK, 0, first
        self.apparent += size
        # one block for the entry itself; file systems of 4 KiB blocks are the rule
        self.room += (size + 4095) // 4096 * 4096 + (4096 if letter == FOLDER else 256)
        if mode & 0o6000 and letter == FILE:
            self.setuid.append(path)
        if letter == SYMLINK:
            link = os.readlink(place)
        xattrs = {} if letter == LINK else xattrs_of(place)
        row = Member(path, letter, mode, info.st_uid, info.st_gid, size,
                     info.st_mtime_ns, link, xattrs)  # fmt: skip
        self.lines.append(row.line())


def xattrs_of(path: str) -> dict[str, str]:
    """Gives an entry's extended attributes, not through a link."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return {}
    if not names:
        return {}
    values = {name: os.getxattr(path, name, follow_symlinks=False) for name in sorted(names)}
    return {name: base64.b64encode(value).decode("ascii") for name, value in values.items()}


def stamp(info: os.stat_result) -> Stamp:
    """Gives what shows that an entry was edited."""
    return (info.st_ino, info.st_mode, info.st_uid, info.st_gid, info.st_size,
            info.st_mtime_ns, info.st_ctime_ns)  # fmt: skip


def _entries(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Gives the root, and what lies under it, a folder before what is in it; by inode, as disks
    lie."""
    yield ".", os.lstat(root)
    pending = [""]
    while pending:
        here = pending.pop()
        with os.scandir(os.path.join(root, here)) as entries:
            found = sorted(entries, key=lambda entry: entry.inode())
        for entry in found:
            info = entry.stat(follow_symlinks=False)
            yield here + entry.name, info
            if stat.S_ISDIR(info.st_mode):
                pending.append(f"{here}{entry.name}/")


def walk(root: str) -> Listing:
    """Gives the listing of a tree.

    Raises NodeError when an entry vanishes meanwhile, and for devices, pipes, sockets and mounts.
    """
    listing = Listing(root)
    try:
        for path, info in _entries(root):
            listing.add(path, info)
    except FileNotFoundError as error:
        raise NodeError(f"{error.filename} is gone: something changes {root} now",
                        "tree_changing", "wait until it is over") from None  # fmt: skip
    return listing


def edited_since(listing: Listing, limit: int = 3) -> str:
    """Gives in words what differs from a walk that was made before, "" for nothing.

    Takes the listing's stamps away as it goes: a second map of a large tree would be memory.
    """
    found: list[str] = []
    try:
        for path, info in _entries(listing.root):
            old = listing.stamps.pop(path, None)
            if old is None or old != stamp(info):
                found.append(f"{path} {'is new' if old is None else 'was edited'}")
    except FileNotFoundError as error:
        found.append(f"{error.filename} is gone")
    found += [f"{path} is gone" for path in listing.stamps]
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more


def as_json(listing: Listing) -> Json:
    """Gives the figures of a walk."""
    return {"apparent_bytes": listing.apparent,
            "room_bytes": listing.room, "setuid": listing.setuid[:100]}  # fmt: skip


def disk_bytes(folder: str) -> int:
    """Gives the bytes on the disk that removing a folder would free; a hard link counts once."""
    seen: dict[int, int] = {}
    for root, names, files in os.walk(folder):
        for entry in (*names, *files):
            info = os.lstat(os.path.join(root, entry))
            seen[info.st_ino] = info.st_blocks * 512
    return sum(seen.values())
