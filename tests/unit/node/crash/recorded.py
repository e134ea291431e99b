"""What a run did to the files under a folder: strace's log as operations of the model (disk.py)."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.change.journal import read_all
from node.change.transaction import undo
from tests.unit.node.crash.disk import (
    Attributes,
    Disk,
    Entries,
    Inode,
    Kind,
    Operation,
    Sync,
    Truncate,
    Write,
    Xattr,
    crashes,
    identity_at,
    rebuild,
)
from tests.unit.node.support import strace
from tests.unit.node.support.host import Host

CALLS = ("open,openat,creat,write,pwrite64,writev,pwritev,lseek,truncate,ftruncate,fallocate,"
         "rename,renameat,renameat2,link,linkat,unlink,unlinkat,symlink,symlinkat,mkdir,mkdirat,"
         "rmdir,chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,utimensat,setxattr,lsetxattr,"
         "fsetxattr,removexattr,lremovexattr,fremovexattr,fsync,fdatasync,sync,syncfs,"
         "copy_file_range,sendfile,umask")  # fmt: skip
OPTIONS = ("-y", "-xx", "-s", str(64 << 20), "-e", f"trace={CALLS}", "-e", "signal=none")
_LINE = re.compile(r"^(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)$")
_RESULT = re.compile(r"\) += (-?\d+)(?:<([^>]*)>)?.*$")
_FD = re.compile(r"^(AT_FDCWD|-?\d+)(?:<([^>]*)>(\(deleted\))?)?$")
_TIMES = re.compile(r"tv_sec=(-?\d+), tv_nsec=(\w+)")
_OWN_FD = "/proc/self/fd/"
_KINDS: dict[int, Kind] = {stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
_IOV = re.compile(r'iov_base="([^"]*)"')


def as_it_lies(top: Path) -> Disk:
    """The model of a real folder: its inodes have the real ones' numbers, the top has 0."""
    inodes: dict[int, Inode] = {}

    def take(path: Path, number: int | None = None) -> int:
        info = path.lstat()
        number = info.st_ino if number is None else number
        if number in inodes:
            return number
        made = Inode(number, _KINDS[stat.S_IFMT(info.st_mode)], stat.S_IMODE(info.st_mode),
                     info.st_uid, info.st_gid, mtime_ns=info.st_mtime_ns)  # fmt: skip
        made.xattrs = {name: os.getxattr(path, name, follow_symlinks=False)
                       for name in os.listxattr(path, follow_symlinks=False)}  # fmt: skip
        inodes[number] = made
        if made.kind == "link":
            made.target = str(path.readlink())
        elif made.kind == "file":
            made.data = path.read_bytes()
        else:
            made.entries = {child.name: take(child) for child in path.iterdir()}
        return number

    take(top, 0)
    return Disk(inodes)


def _plain(text: str) -> str:
    """A string that strace wrote in hex (-xx)."""
    return os.fsdecode(_raw(text))


def _raw(text: str) -> bytes:
    return bytes.fromhex(text.strip('"').replace("\\x", ""))


class Recording:
    """The operations of a run on a disk as it was before; `now` is the disk as the run sees it."""

    def __init__(self, top: Path, before: Disk, foreign: tuple[str, ...] = ()) -> None:
        self.top, self.before, self.now = str(top), before, before.copy()
        self.run: list[Operation] = []
        # what others keep (the doubles): it is durable at once
        self.kept: set[int] = set()
        found = [self.before.at(path) for path in foreign]
        self._foreign = {one.number for top in found if top for one in self.before.below(top)}
        self._offsets: dict[int, int] = {}
        self._next = 1 << 60
        self._waiting: dict[str, str] = {}
        self._opened: dict[tuple[str, str], str] = {}
        self._thread = ""
        self._umask = os.umask(0)
        os.umask(self._umask)

    def read(self, log: Path) -> Recording:
        """Take strace's log. Raises ValueError for a call that the model has not."""
        for line in log.read_text().splitlines():
            match = _LINE.match(line)
            if not match:
                continue
            thread, _, call, rest = match.groups()
            if rest.endswith("<unfinished ...>"):
                self._waiting[thread] = f"{call}({rest.removesuffix('<unfinished ...>')}"
                continue
            whole = f"{call}({rest}" if call else self._waiting.pop(thread) + rest.lstrip()
            result = _RESULT.search(whole)
            self._thread = thread
            if result and int(result[1]) >= 0:
                name, _, inside = whole[: result.start()].partition("(")
                self._call(name, _arguments(inside), int(result[1]), result[2])
        return self

    def _call(self, name: str, args: list[str], result: int, opened: str | None) -> None:
        if name == "umask":
            self._umask = int(args[0], 8)
        elif name in ("sync", "syncfs"):
            self._do(Sync(None, "all"))
        elif name in ("open", "openat", "creat"):
            self._open(
                args[-3:] if name == "openat" and len(args) > 3 else args[-2:],
                str(result),
                opened or "",
            )
        elif name in ("fallocate", "copy_file_range", "sendfile"):
            # what it writes to; a read changes nothing
            if self._under(args[2 if name == "copy_file_range" else 0]):
                raise ValueError(f"{name} is not in the model")
        elif (
            args
            and _FD.match(args[0])
            and (name in _ON_FD and not (name == "utimensat" and _is_path(args[1:2])))
        ):
            number = self._number(args[0])
            if number is not None:
                _ON_FD[name](self, number, args, result)
        else:
            self._paths(name, args)

    def _open(self, args: list[str], fd: str, opened: str) -> None:
        flags = args[1] if len(args) > 1 else "O_CREAT|O_TRUNC"
        self._opened[self._thread, fd] = _plain(opened)
        path = self._inside(_plain(opened))
        if path is None or not ("O_WRONLY" in flags or "O_RDWR" in flags or "O_CREAT" in flags):
            return
        if "O_TMPFILE" in flags:
            raise ValueError("O_TMPFILE is not in the model")
        there = self.now.at(path)
        if there is None:
            mode = int(args[-1], 8) & ~self._umask
            there = self._make(path, "file", mode)
        elif "O_TRUNC" in flags and there.data:
            self._do(Truncate(there.number, 0))
        self._offsets[there.number] = len(there.data) if "O_APPEND" in flags else 0

    def _paths(self, name: str, args: list[str]) -> None:
        """The calls that name their paths, with or without a folder's descriptor before each."""
        values = args[1:] if "xattr" in name else []  # a name and a value, not paths
        paths, rest = _named(args[:1] if values else args)
        rest += values
        inside = [self._inside(path) for path in paths]
        if name.startswith("symlink"):
            if inside[-1] is not None:
                self._make(inside[-1], "link", 0o777, _plain(args[0]))
            return
        if all(path is None for path in inside):
            return
        if any(path is None for path in inside):
            raise ValueError(f"{name}: from or to elsewhere: {paths}")
        found = [str(path) for path in inside]
        if name.startswith("rename"):
            self._rename(found[0], found[1], "RENAME_EXCHANGE" in " ".join(rest))
        elif name in ("link", "linkat"):
            self._enter(found[1], self._there(found[0]).number)
        elif name in ("unlink", "unlinkat", "rmdir"):
            self._enter(found[0], None)
        elif name in ("mkdir", "mkdirat"):
            self._make(found[0], "folder", int(rest[0], 8) & ~self._umask)
        else:
            on = {"chmod": "fchmod", "fchmodat": "fchmod", "chown": "fchown", "lchown": "fchown",
                  "fchownat": "fchown", "setxattr": "fsetxattr", "lsetxattr": "fsetxattr",
                  "removexattr": "fremovexattr", "lremovexattr": "fremovexattr",
                  "truncate": "ftruncate"}.get(name, name)  # fmt: skip
            if on not in _ON_FD:
                raise ValueError(f"{name} is not in the model")
            _ON_FD[on](self, self._there(found[0]).number, ["", *rest], 0)

    def _rename(self, old: str, new: str, exchange: bool) -> None:
        moved = self._there(old).number
        back = self._there(new).number if exchange else None
        if moved != back:
            self._do(Entries(((*self._place(old), back), (*self._place(new), moved))))

    def _make(self, path: str, kind: Kind, mode: int, target: str = "") -> Inode:
        self._next += 1
        made = Inode(self._next, kind, mode, os.geteuid(), os.getegid(), target=target)
        if self._place(path)[0] in self._foreign:
            self._foreign.add(made.number)
        self.before.inodes[made.number] = made.copy()  # no name leads to it yet
        self.now.inodes[made.number] = made
        self._enter(path, made.number)
        return made

    def _enter(self, path: str, number: int | None) -> None:
        self._do(Entries(((*self._place(path), number),)))

    def _place(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return self._there(folder).number, name

    def _there(self, path: str) -> Inode:
        found = self.now.at(path)
        if found is None:
            raise ValueError(f"{path} is not in the model's disk")
        return found

    def _do(self, done: Operation) -> None:
        self.now.apply(done)
        touched = {row[0] for row in done.changes} if isinstance(done, Entries) else {done.inode}
        if touched <= self._foreign:
            self.kept.add(len(self.run))
        self.run.append(done)

    def _inside(self, path: str) -> str | None:
        """The path under the top, or None for one elsewhere."""
        if path.startswith(_OWN_FD):  # tar names an O_PATH descriptor so
            path = self._opened[self._thread, path.removeprefix(_OWN_FD)]
        path = os.path.normpath(path)
        return path[len(self.top) + 1 :] if path.startswith(self.top + "/") else None

    def _under(self, argument: str) -> bool:
        match = _FD.match(argument)
        return bool(match and match[2] and self._inside(_plain(match[2])) is not None)

    def _number(self, argument: str) -> int | None:
        """The inode of a descriptor, None for one elsewhere or one that has no name any more."""
        match = _FD.match(argument)
        if not match or not match[2] or match[3]:
            return None
        path = _plain(match[2])
        inside = "" if path == self.top else self._inside(path)
        return None if inside is None else self._there(inside).number

    def _write(self, number: int, args: list[str], result: int) -> None:
        data = _raw(args[1])[:result]
        offset = self._offsets.get(number, 0)
        self._do(Write(number, offset, data))
        self._offsets[number] = offset + len(data)

    def _writev(self, number: int, args: list[str], result: int) -> None:
        data = b"".join(_raw(part) for part in _IOV.findall(args[1]))
        self._write(number, ["", '"' + data.hex() + '"'], result)

    def _pwrite(self, number: int, args: list[str], result: int) -> None:
        self._do(Write(number, int(args[3]), _raw(args[1])[:result]))

    def _lseek(self, number: int, args: list[str], result: int) -> None:
        self._offsets[number] = result

    def _ftruncate(self, number: int, args: list[str], _: int) -> None:
        self._do(Truncate(number, int(args[1])))

    def _fchmod(self, number: int, args: list[str], _: int) -> None:
        self._do(Attributes(number, mode=int(args[1], 8)))

    def _fchown(self, number: int, args: list[str], _: int) -> None:
        uid, gid = (None if int(word) in (-1, 0xFFFFFFFF) else int(word) for word in args[1:3])
        self._do(Attributes(number, uid=uid, gid=gid))

    def _times(self, number: int, args: list[str], _: int) -> None:
        found = _TIMES.findall(" ".join(args))
        if found and found[-1][1].isdigit():
            self._do(Attributes(number, mtime_ns=int(found[-1][0]) * 10**9 + int(found[-1][1])))

    def _setxattr(self, number: int, args: list[str], _: int) -> None:
        self._do(Xattr(number, _plain(args[1]), _raw(args[2])))

    def _removexattr(self, number: int, args: list[str], _: int) -> None:
        self._do(Xattr(number, _plain(args[1]), None))

    def _fsync(self, number: int, args: list[str], _: int) -> None:
        kind = self.now.inodes[number].kind
        self._do(Sync(number, "folder" if kind == "folder" else "file"))

    def _fdatasync(self, number: int, args: list[str], _: int) -> None:
        self._do(Sync(number, "data"))


_ON_FD: dict[str, Callable[[Recording, int, list[str], int], None]] = {
    "write": Recording._write, "writev": Recording._writev, "pwrite64": Recording._pwrite,
    "lseek": Recording._lseek, "ftruncate": Recording._ftruncate, "fchmod": Recording._fchmod,
    "fchown": Recording._fchown, "utimensat": Recording._times,
    "fsetxattr": Recording._setxattr, "fremovexattr": Recording._removexattr,
    "fsync": Recording._fsync, "fdatasync": Recording._fdatasync,
}  # fmt: skip


def _arguments(text: str) -> list[str]:
    """A call's arguments; every string is in hex, so that brackets and commas are the call's."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and not depth:
            found.append(text[start:at].strip())
            start = at + 1
    return [*found, text[start:].strip()] if text.strip() else []


def _is_path(args: list[str]) -> bool:
    """Whether a call names a path behind a folder's descriptor (utimensat may name none)."""
    return bool(args) and args[0].startswith('"')


def _named(args: list[str]) -> tuple[list[str], list[str]]:
    """The absolute paths that a call names, and its other arguments."""
    paths, rest, folder = [], [], None
    for word in args:
        match = _FD.match(word)
        if match and match[2] is not None:
            folder = _plain(match[2])
            paths.append(folder)  # a descriptor that stands alone is a path itself
        elif (word.startswith('"') and "\\x" in word) or word == '""':
            if folder is not None:
                paths.pop()
            paths.append(str(Path(folder or "", _plain(word))))
            folder = None
        else:
            rest.append(word)
    return paths, rest


# Runs that lose power, and what each disk after it must show.
#
# A check raises Lost where something is neither old nor new, or cannot be brought back; Lied where
# the program says what is not so.

SEED = 20261122


class Lost(AssertionError):
    """Something is gone, damaged, or a mix."""


class Lied(AssertionError):
    """What was said is not so."""


@dataclass
class Run:
    """A verb on a host that loses power: what it begins with, and the check of what it leaves."""

    host: Host
    verb: str
    request: dict[str, Any]
    reset: Callable[[], object]
    check: Callable[[bool], str]  # gets whether the verb had answered; gives the end in a word
    # told to leave out, as the proof that the test can fail
    without: Callable[[Any], bool] | None = None
    # Python that does it, where the verb alone cannot be led to the test's folders
    script: str | None = None


@dataclass
class Table:
    """How the disks of one run ended."""

    ends: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    lied: list[str] = field(default_factory=list)

    @property
    def states(self) -> int:
        """How many different disks there were."""
        return sum(self.ends.values()) + len(self.lost) + len(self.lied)


def cut(run: Run) -> Table:
    """Record a run, then let it lose power wherever it can; each disk is repaired and judged."""
    log = run.host.root.parent / "strace.log"
    run.reset()
    before = as_it_lies(run.host.root)
    real = {inode.number: identity_at(run.host.root / path) for path, inode in before.reachable()}
    text = json.dumps(run.request)
    if run.script is None:
        done = strace.traced(run.host, run.verb, text, OPTIONS, log)
    else:
        argv = [sys.executable, "-B", "-c", run.script]
        done = run.host.run(["strace", "-f", "-qq", "-o", str(log), *OPTIONS, *argv])
    assert done.returncode == 0, done.stdout + done.stderr
    recording = Recording(run.host.root, before, ("bin",)).read(log)
    real |= same(recording, run.host.root)
    operations = [done for done in recording.run if run.without is None or not run.without(done)]
    table = Table()
    for crash in crashes(before, operations, recording.kept, SEED):
        rebuild(crash.disk, run.host.root, real)
        try:
            table.ends[run.check(crash.answered)] += 1
        except Lied as error:
            table.lied.append(f"{crash.words}: {error}")
        except Exception as error:
            table.lost.append(f"{crash.words}: {type(error).__name__} {error}")
    return table


def same(recording: Recording, top: Path) -> dict[int, tuple[bytes, bytes]]:
    """Fails unless the model ends where the real run did; gives its inodes' real identities."""
    real = as_it_lies(top)
    rows = [{path: (inode.kind, inode.mode, inode.uid, inode.gid, inode.data, inode.target,
                    inode.xattrs) for path, inode in disk.reachable()}
            for disk in (recording.now, real)]  # fmt: skip
    differ = [path for path in {**rows[0], **rows[1]} if rows[0].get(path) != rows[1].get(path)]
    shown = [(path, rows[0].get(path), rows[1].get(path)) for path in differ[:3]]
    assert not differ, f"the model is not the run: {shown}"
    return {inode.number: identity_at(top / path) for path, inode in recording.now.reachable()}


def journal() -> list[dict[str, Any]]:
    """The changes. Raises Lost where a file of theirs is damaged."""
    changes, broken = read_all()
    if broken:
        raise Lost(f"the journal is damaged: {broken}")
    return changes


def undone(old: object, seen: Callable[[], object]) -> str:
    """One undo, as a person types it: all is old then, or it says that it is not."""
    status = undo({})["status"]
    if status not in (None, "ROLLED_BACK"):
        raise Lost(f"undo ends {status}")
    if seen() != old:
        raise Lied(f"undo says {status}, but there is {seen()}, not {old}")
    return str(status or "nothing begun")
