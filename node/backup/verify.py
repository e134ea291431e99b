"""tree verify: read a backup back from the disk, every byte of it, against its manifest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from node.backup import create, store
from node.backup import payload as backup_payload
from node.backup.payload import CHUNK, PayloadReader, Progress, Reader, Safety, forget, refused
from node.backup.store import FILE, FOLDER, LINK, SYMLINK, Member, member, xattrs_of
from node.core import dirfd, errors, validate
from node.core.errors import Json, NodeError, io_reason
from node.core.run import TimedOut, run


def stop() -> None:
    """Raise NodeError when a signal asked to end."""
    number = errors.interrupted()
    if number:
        raise NodeError(f"ended by {number}", "interrupted", "run it again")


def _members(backup: str, known: Json) -> str:
    """Gives the path of the list of members, which is as it was recorded."""
    path = store.of(backup, store.MEMBERS)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        forget(file.fileno())
        for piece in iter(lambda: file.read(backup_payload.CHUNK), b""):
            digest.update(piece)
    if digest.hexdigest() != known["sha256"]:
        raise store.damaged(backup, "its list of members was edited")
    return path


def read(
    backup: str, manifest: Json, what: str, sink: Callable[[bytes], object] | None = None
) -> list[str]:
    """Read a payload from the disk to its end; `sink` gets each piece of its tar after it was
    looked at, the last one after all of it was. Gives the members with setuid, setgid or
    capabilities.

    Raises NodeError (`backup_damaged`) for anything that is not as the manifest says, every file's
    bytes among it, and for what no payload may hold.
    """
    give = sink or (lambda piece: None)
    safety = Safety()
    last = b""
    payload, members = manifest["payload"], manifest["members"]
    note = store.of(backup, store.NOTE)
    progress = backup_payload.Progress(what, payload["bytes"], note)
    with open(_members(backup, members), "rb") as lines:
        reader = Reader(map(member, lines), safety)
        source = PayloadReader(store.of(backup, store.PAYLOAD), progress)
        try:
            while True:
                piece = source.read()
                if not piece:
                    break
                reader.feed(piece)
                if last:
                    give(last)
                last = piece
                stop()
            digest, code = source.finish(), source.code()
        finally:
            said = source.close()
            progress.over()
        if digest != payload["sha256"]:
            raise refused("its sha256 is another one: the bytes were changed")
        if code != 0:
            raise refused(f"zstd ended with {code}: {said or 'no word'}")
        reader.finish()
    if reader.count != members["count"]:
        raise refused(f"{reader.count} members, not {members['count']}")
    give(last)
    return safety.setuid


def verify(request: Json) -> Json:
    """Verify a backup, the newest when none is named; the outcome is noted beside it.

    Raises NodeError (`backup_damaged`) with what is wrong.
    """
    body = validate.keys(request, "request", ("backup",))
    backup_payload.compressors()
    began = time.time()
    with store.Held(shared=True):
        backup = newest() if body.get("backup") is None else store.checked_id(body["backup"])
        manifest = store.load(backup)
        try:
            size = store.inspect(backup)
            if size.manifest is None:
                raise store.damaged(backup, size.problem)
            create.check_files(backup, manifest)
            _read(backup, manifest)
        except NodeError as error:
            if error.code == "backup_damaged":
                store.mark(backup, manifest, str(error))
            raise
        store.mark(backup, manifest, "")
    return {
        "backup": backup,
        "tree": manifest["tree"],
        "members": manifest["members"]["count"],
        "bytes": manifest["payload"]["bytes"],
        "sha256": manifest["payload"]["sha256"],
        "versions": manifest["facts"]["versions"],
        "setuid": manifest["setuid"],
        "took_s": round(time.time() - began, 2),
    }


def _read(backup: str, manifest: Json) -> None:
    """Read a payload back; one that is damaged is noted with every backup that has it."""
    try:
        read(backup, manifest, f"verify {backup}")
    except NodeError as error:
        if error.code == "backup_damaged":
            for row in store.sharing(manifest["payload"]["sha256"]):
                store.mark(row.id, row.manifest or {}, str(error))
        raise


def newest() -> str:
    """Gives the id of the newest backup. Raises NodeError when there is none."""
    found = store.all_backups()
    if not found:
        raise NodeError("there is no backup on this host", "no_backup",
                        "make one: rignode tree backup '{\"tree\": \"/PATH\"}'")  # fmt: skip
    return found[-1].id


# Compare a tree with the members of its backup: every entry, and every byte of every file.
#
# The tree may belong to somebody who changes it meanwhile, and node is root: folders are entered
# by
# descriptor, no link is followed, nothing but a plain file is opened.

_KIND = {FILE: stat.S_IFREG, SYMLINK: stat.S_IFLNK, FOLDER: stat.S_IFDIR}
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# files whose bytes are on their way from the disk, and how many of them are hashed at a time: one
# core takes a sha256 of 1.4 GB/s, a disk reads more
AHEAD = 32
HASHING = min(8, os.cpu_count() or 1)
LOOK_S = 0.5
# a file's inode and ctime: as long as both are the same, nobody has written to it
Mark = tuple[int, int]


def first_difference(backup: str, manifest: Json, root: str) -> str:
    """Gives the first entry in words that is not as recorded, "" when all are."""
    with contextlib.ExitStack() as stack:
        try:
            fd = stack.enter_context(dirfd.folder(root))
        except NodeError as error:
            return str(error)
        return Comparison(backup, manifest, fd).first()


class Comparison:
    """One comparison of what lies in the folder `fd`.

    `known` are the marks that an earlier comparison left in `marks`: what still has its mark is not
    read again.
    """

    def __init__(self, backup: str, manifest: Json, fd: int, known: Sequence[Mark] = ()) -> None:
        self.marks: list[Mark] = []
        self._backup, self._root, self._known = backup, fd, known
        self._above: str | None = None
        self._folder = fd
        self._ahead: deque[tuple[Member, Future[tuple[str, int]]]] = deque()
        self._over = False
        self._buffers = threading.local()
        note = store.of(backup, store.NOTE)
        what = f"compare with {backup}"
        self._progress = Progress(what, manifest["apparent_bytes"], note)

    def first(self) -> str:
        """Gives the first entry in words that is not as recorded, "" when all are."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._progress.over)
            self._pool = stack.enter_context(ThreadPoolExecutor(HASHING))
            stack.callback(self._end)
            self._stack = stack.enter_context(contextlib.ExitStack())
            return self._entries() or self._count()

    def _end(self) -> None:
        """Nobody waits for what is still being hashed."""
        self._over = True

    def _entries(self) -> str:
        with open(store.of(self._backup, store.MEMBERS), "rb") as lines:
            for line in lines:
                row = member(line)
                stop()
                wrong = self._unlike(row)
                if not wrong and len(self._ahead) > AHEAD:
                    row, wrong = self._read_oldest()
                if wrong:
                    return f"{row.path}: {wrong}"
        while self._ahead:
            row, wrong = self._read_oldest()
            if wrong:
                return f"{row.path}: {wrong}"
        return ""

    def _enter(self, above: str) -> int:
        """Gives a descriptor of a folder of the tree; the last one is kept."""
        if above != self._above:
            self._stack.close()
            inside = dirfd.inside(self._root, above, above)
            self._folder, self._above = self._stack.enter_context(inside), above
        return self._folder

    def _unlike(self, row: Member) -> str:
        """Gives in what an entry differs from its member, or ""; its bytes are still to be read."""
        try:
            return self._look(row)
        except OSError as error:
            return io_reason(error)
        except NodeError as error:  # a link in place of a folder
            return str(error)

    def _look(self, row: Member) -> str:
        above, _, name = row.path.rpartition("/")
        fd = self._enter(above)
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        mark = (info.st_ino, info.st_ctime_ns)
        number = len(self.marks)
        self.marks.append(mark)
        if row.type == LINK:
            path = f"/proc/self/fd/{self._root}/{row.link}"
            return "" if info.st_ino == os.lstat(path).st_ino else f"it does not share {row.link}"
        if stat.S_IFMT(info.st_mode) != _KIND[row.type]:
            return "it is of another kind"
        wrong = self._differing(row, fd, name, info)
        if wrong or row.type != FILE:
            return wrong
        if not self._known or self._known[number] != mark:
            self._open(row, fd, name, mark[0])
        return ""

    def _differing(self, row: Member, fd: int, name: str, info: os.stat_result) -> str:
        """Gives what differs beside the bytes."""
        pairs: list[tuple[str, object, object]] = [
            ("owner", (row.uid, row.gid), (info.st_uid, info.st_gid)),
        ]
        if row.type == SYMLINK:
            pairs.append(("target", row.link, os.readlink(name, dir_fd=fd)))
        else:
            pairs.append(("mode", oct(row.mode), oct(stat.S_IMODE(info.st_mode))))
        if row.type == FILE:
            pairs.append(("size", row.size, info.st_size))
        if row.type != FOLDER:  # byte code changes a folder's
            pairs.append(("time in ns", row.mtime, info.st_mtime_ns))
        now_x = xattrs_of(f"/proc/self/fd/{fd}/{name}")
        for each in sorted({*row.xattrs, *now_x}):
            pairs.append((each, row.xattrs.get(each), now_x.get(each)))
        for what, wanted, have in pairs:
            if wanted != have:
                return f"its {what} is {have!s:.60}, not {wanted!s:.60}"
        return ""

    def _open(self, row: Member, above: int, name: str, inode: int) -> None:
        """Let the disk begin with a file's bytes, past the page cache."""
        fd = os.open(name, _READ, dir_fd=above)
        if os.fstat(fd).st_ino != inode:
            os.close(fd)
            raise NodeError("it was replaced meanwhile", "tree_changing")
        forget(fd)
        os.posix_fadvise(fd, 0, CHUNK, os.POSIX_FADV_WILLNEED)
        self._ahead.append((row, self._pool.submit(self._hash, fd)))

    def _hash(self, fd: int) -> tuple[str, int]:
        """Gives the sha256 of an open file and its length, and closes it; in a thread of several.
        Raises OSError."""
        if not hasattr(self._buffers, "one"):
            self._buffers.one = memoryview(bytearray(CHUNK))
        buffer: memoryview = self._buffers.one
        digest, total = hashlib.sha256(), 0
        try:
            while not self._over and (count := os.readv(fd, [buffer])):
                digest.update(buffer[:count])
                total += count
            forget(fd)
        finally:
            os.close(fd)
        return digest.hexdigest(), total

    def _read_oldest(self) -> tuple[Member, str]:
        """Gives the file that was opened first, and in words that it has other bytes, or ""."""
        row, hashed = self._ahead.popleft()
        while not wait([hashed], LOOK_S).done:  # a file of many GB
            stop()
        try:
            found, count = hashed.result()
        except OSError as error:
            return row, io_reason(error)
        self._progress.add(count)
        return row, "" if found == row.sha256 else "it has other bytes"

    def _count(self) -> str:
        """Gives in words that other entries lie there than were recorded, or ""."""
        there = 1
        for _, folders, files, _ in os.fwalk(".", dir_fd=self._root):
            there += len(folders) + len(files)
        return "" if there == len(self.marks) else f"{there} entries, not {len(self.marks)}"


# Unpack a payload into a fresh folder, and prove that what lies there is what was recorded.

SYNC_TIMEOUT_S = 1800.0


class Unpacked(NamedTuple):
    """What lies in the folder now: the members with setuid, setgid or capabilities, and the mark of
    each member at the time it was proven.
    """

    setuid: list[str]
    marks: list[Mark]


def unpack(backup: str, manifest: Json, target: str) -> Unpacked:
    """Fill an empty folder that lies in a private one of ours, and prove every byte of it.

    Each member is looked at before tar gets it; nothing is run of what is unpacked. It is on the
    disk on return, and was read from there. All work goes through the folder's descriptor: its
    place may be in a folder of somebody else. Raises NodeError when the folder is not ours, or the
    payload or what came of it is not as recorded.
    """
    above, name = os.path.split(target)
    with dirfd.private(above) as private, dirfd.inside(private, name, target) as fd:
        setuid = _extract(backup, manifest, fd)
        _flush(fd, target)
        proof = Comparison(backup, manifest, fd)
        wrong = proof.first()
    if wrong:
        raise NodeError(f"what was unpacked is not what was recorded: {wrong}", "tree_failed",
                        "look at the file system, then run it again")  # fmt: skip
    return Unpacked(setuid, proof.marks)


def _extract(backup: str, manifest: Json, folder: int) -> list[str]:
    """Let tar fill a folder with what passes the reader; gives the members with setuid, setgid or
    capabilities."""
    said = backup_payload.StderrTail()
    tar = backup_payload.start_compressor(
        ["tar", "--extract", "--file=-", f"--directory=/proc/self/fd/{folder}",
         "--same-permissions", "--same-owner", "--numeric-owner", "--xattrs", "--xattrs-include=*",
         "--delay-directory-restore", "--blocking-factor=512"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said.write_fd, pass_fds=[folder],
    )  # fmt: skip
    assert tar.stdin
    backup_payload.enlarge_pipe(tar.stdin)
    fd = tar.stdin.fileno()

    def sink(piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            view = view[os.write(fd, view) :]

    broken = False
    setuid: list[str] = []
    try:
        try:
            setuid = read(backup, manifest, f"restore {backup}", sink)
        except BrokenPipeError:
            broken = True  # tar says why
        tar.stdin.close()
        code = tar.wait()
    finally:
        backup_payload.reap_children([tar])
        last = said.last()
    if code != 0 or broken:
        raise NodeError(f"tar ended with {code}: {last or 'no word'}", "tree_failed",
                        "mend that, then run it again")  # fmt: skip
    return setuid


def _flush(folder: int, shown: str) -> None:
    """Bring the file system of a folder to the disk. Raises NodeError."""
    try:
        done = run(["sync", "-f", f"/proc/{os.getpid()}/fd/{folder}"], SYNC_TIMEOUT_S)
        problem = "" if done.rc == 0 else done.last_line()
    except TimedOut as error:
        problem = str(error)
    except OSError as error:
        problem = io_reason(error)
    if problem:
        raise NodeError(f"{shown} cannot be written to the disk: {problem}", "io")
