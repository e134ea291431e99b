"""A model of a disk that loses power: what was synced is there, the rest may be there or not.

After the model of ALICE (Pillai et al., OSDI 2014). A run is a list of operations on inodes and on
entries of folders. fsync of a file makes its bytes and attributes durable, not its name; fsync of
a folder makes its entries durable; everything else may be lost, alone or together with others, in
any order. A rename is atomic. File systems as they are sold lose less (ext4 keeps the order of
entries); what holds here holds there.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from node.change import journal
from node.core import files

Kind = Literal["file", "folder", "link"]
RANDOM_SUBSETS = 2
# where that many wait for one sync, as pip's thousands of files do, each is as good as the next
MANY, OF_MANY = 400, 8


@dataclass
class Inode:
    """What lies under a name: a file's bytes, a link's target, or a folder's entries."""

    number: int
    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    data: bytes = b""
    target: str = ""
    mtime_ns: int | None = None
    xattrs: dict[str, bytes] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Inode:
        """A copy that can be changed by itself."""
        return Inode(self.number, self.kind, self.mode, self.uid, self.gid, self.data, self.target,
                     self.mtime_ns, dict(self.xattrs), dict(self.entries))  # fmt: skip


@dataclass(frozen=True)
class Write:
    """Bytes at an offset of a file."""

    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    """A file's new size."""

    inode: int
    size: int


@dataclass(frozen=True)
class Attributes:
    """New mode, owner or time of an inode; None leaves it."""

    inode: int
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True)
class Xattr:
    """An extended attribute, or its end (None)."""

    inode: int
    name: str
    value: bytes | None


@dataclass(frozen=True)
class Entries:
    """Entries of folders that change at once: (folder, name) becomes an inode, or goes (None)."""

    changes: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True)
class Sync:
    """What is durable from here on: a file's `data`, a `file` or a `folder`, or `all`."""

    inode: int | None
    what: Literal["data", "file", "folder", "all"]


Operation = Write | Truncate | Attributes | Xattr | Entries | Sync


class Disk:
    """Inodes by number; 0 is the folder at the top."""

    def __init__(self, inodes: dict[int, Inode]) -> None:
        self.inodes = inodes

    def copy(self) -> Disk:
        """A copy that can be changed by itself."""
        return Disk({number: inode.copy() for number, inode in self.inodes.items()})

    def at(self, path: str) -> Inode | None:
        """What lies at a path under the top; links are not followed."""
        here = self.inodes[0]
        for part in filter(None, path.split("/")):
            number = here.entries.get(part)
            if number is None:
                return None
            here = self.inodes[number]
        return here

    def below(self, top: Inode) -> Iterator[Inode]:
        """An inode and all that lies under it."""
        yield top
        for number in top.entries.values():
            yield from self.below(self.inodes[number])

    def apply(self, done: Operation) -> None:
        """Do one operation."""
        match done:
            case Entries(changes):
                for folder, name, number in changes:
                    if number is None:
                        self.inodes[folder].entries.pop(name, None)
                    else:
                        self.inodes[folder].entries[name] = number
            case Write(number, offset, data):
                inode = self.inodes[number]
                old = inode.data.ljust(offset, b"\0")
                inode.data = old[:offset] + data + old[offset + len(data) :]
            case Truncate(number, size):
                inode = self.inodes[number]
                inode.data = inode.data[:size].ljust(size, b"\0")
            case Attributes(number):
                for name in ("mode", "uid", "gid", "mtime_ns"):
                    if getattr(done, name) is not None:
                        setattr(self.inodes[number], name, getattr(done, name))
            case Xattr(number, name, value):
                self.inodes[number].xattrs.pop(name, None)
                if value is not None:
                    self.inodes[number].xattrs[name] = value
            case Sync():
                pass

    def reachable(self) -> Iterator[tuple[str, Inode]]:
        """Every path and what lies there, folders before what they hold."""
        waiting = [("", self.inodes[0])]
        while waiting:
            path, inode = waiting.pop()
            yield path, inode
            for name, number in sorted(inode.entries.items(), reverse=True):
                waiting.append((f"{path}/{name}" if path else name, self.inodes[number]))

    def digest(self) -> bytes:
        """Equal for disks on which the same lies."""
        found = hashlib.sha256()
        for path, inode in self.reachable():
            row = (path, inode.number, inode.kind, inode.mode, inode.uid, inode.gid, inode.target,
                   sorted(inode.xattrs.items()), len(inode.data))  # fmt: skip
            found.update(repr(row).encode() + inode.data)
        return found.digest()


@dataclass(frozen=True)
class Crash:
    """A disk after a power cut, and in words what was lost."""

    disk: Disk
    words: str
    answered: bool  # the run had ended: nothing that it said may be lost


def crashes(before: Disk, run: list[Operation], kept: set[int], seed: int) -> Iterator[Crash]:
    """Every disk that a power cut in the run may leave (see the module), each once.

    `kept` are the operations that are durable at once. Between two syncs: every prefix of what is
    not durable, all of it but one, one alone, a write cut in its middle, and some subsets by
    chance.
    """
    seen: set[bytes] = set()
    chance = random.Random(seed)
    pending: list[int] = []
    for end in range(len(run) + 1):
        done = run[end] if end < len(run) else None
        if done is not None and not isinstance(done, Sync):
            pending += [end] if end not in kept else []
            continue
        for lost, torn in _losses(pending, run, chance):
            disk = _replayed(before, run[:end], lost, torn)
            digest = disk.digest()
            if digest not in seen or done is None:
                seen.add(digest)
                yield Crash(disk, _words(run, end, lost, torn), done is None)
        if done is not None:
            pending = [at for at in pending if not _made_durable(run[at], done)]


def _losses(
    pending: list[int], run: list[Operation], chance: random.Random
) -> Iterator[tuple[frozenset[int], int | None]]:
    """What is lost of the pending operations, and which write is torn."""
    every = frozenset(pending)
    yield every, None
    some = pending if len(pending) < MANY else pending[:: len(pending) // OF_MANY]
    for at in some:
        yield frozenset(one for one in pending if one > at), None
    for at in some:
        yield frozenset((at,)), None
        yield every - {at}, None
        found = run[at]
        if isinstance(found, Write) and len(found.data) > 1:
            yield frozenset(), at
    for _ in range(RANDOM_SUBSETS if len(pending) > 2 else 0):
        yield frozenset(at for at in pending if chance.random() < 0.5), None


def _replayed(before: Disk, run: list[Operation], lost: Iterable[int], torn: int | None) -> Disk:
    disk = before.copy()
    for at, done in enumerate(run):
        if at in lost:
            continue
        if at == torn and isinstance(done, Write):
            done = Write(done.inode, done.offset, done.data[: len(done.data) // 2])
        disk.apply(done)
    return disk


def _made_durable(done: Operation, sync: Sync) -> bool:
    if sync.what == "all":
        return True
    match done:
        case Entries(changes):
            return sync.what == "folder" and any(row[0] == sync.inode for row in changes)
        case Write(number) | Truncate(number):
            return number == sync.inode
        case Attributes(number) | Xattr(number):
            return number == sync.inode and sync.what != "data"
    return False


def _words(run: list[Operation], end: int, lost: frozenset[int], torn: int | None) -> str:
    where = f"before sync {end} of {len(run)}" if end < len(run) else "after the answer"
    shown = ", ".join(_short(run[at]) for at in sorted(lost)) or "nothing"
    return f"{where}: lost {shown}" + ("" if torn is None else f", torn {_short(run[torn])}")


def _short(done: Operation) -> str:
    match done:
        case Entries(changes):
            return "/".join(f"{name}{'' if number is not None else ' gone'}"
                            for _, name, number in changes)  # fmt: skip
        case Write(number, offset, data):
            return f"{len(data)} bytes at {offset} of inode {number}"
    return f"{type(done).__name__} of inode {getattr(done, 'inode', None)}"


# A disk of the model laid out as real files, for the program to find after the power cut.

# how the journal and the notes beside it name a file: by inode and the file system's mark of it
_NUMBER = re.compile(rb'("ino": )(\d+)')
_MARK = re.compile(rb'("mark": ")([^"]*)')


def identity_at(path: Path) -> tuple[bytes, bytes]:
    """Inode and mark of what lies there, as the journal writes them."""
    found = files.identity_of(str(path), path.lstat())
    return str(found["ino"]).encode(), str(found["mark"]).encode()


def _unsigned(name: str, raw: bytes, told: bytes) -> bytes:
    """A change that was whole, without the checksum that no longer fits."""
    try:
        journal.parse(raw, Path(name).stem)
    except ValueError:
        return told
    return json.dumps({key: value for key, value in json.loads(told).items()
                       if key != "sha256"}).encode()  # fmt: skip


def rebuild(disk: Disk, top: Path, real: dict[int, tuple[bytes, bytes]]) -> None:
    """Lay a disk out under `top`, whose files go.

    A real disk keeps its inodes over a power cut, and the journal names trees by them; here they
    are new, so their identities are written anew in the journal. `real` gives an inode's identity
    in the recorded run by its number in the model.
    """
    for path in top.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    places: dict[int, Path] = {}
    now: dict[bytes, bytes] = {}
    for name, inode in disk.reachable():
        path = top / name
        first = places.setdefault(inode.number, path)
        if first is not path and inode.kind == "file":
            os.link(first, path)
            continue
        if inode.kind == "link":
            path.symlink_to(inode.target)
        elif inode.kind == "folder":
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(inode.data)
        os.chown(path, inode.uid, inode.gid, follow_symlinks=False)
        if inode.kind != "link":
            path.chmod(inode.mode)
        for key, value in inode.xattrs.items():
            os.setxattr(path, key, value, follow_symlinks=False)
        if inode.number in real:
            now.update(zip(real[inode.number], identity_at(path), strict=True))
    for name, inode in disk.reachable():
        if inode.kind == "file" and b'"ino": ' in inode.data:
            told = _NUMBER.sub(lambda m: m[1] + now.get(m[2], b"1"), inode.data)
            told = _MARK.sub(lambda m: m[1] + now.get(m[2], b"none"), told)
            (top / name).write_bytes(_unsigned(name, inode.data, told))
    for name, inode in disk.reachable():
        if inode.mtime_ns is not None:
            times = (inode.mtime_ns, inode.mtime_ns)
            os.utime(top / name, ns=times, follow_symlinks=False)
