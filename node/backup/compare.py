"""Compare a tree with the members of its backup: every entry, and every byte of every file.

The tree may belong to somebody who changes it meanwhile, and node is root: folders are entered by
descriptor, no link is followed, nothing but a plain file is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from node.backup import store, verify
from node.backup.compress import CHUNK, Progress
from node.backup.payload_reader import forget
from node.backup.walk import FILE, FOLDER, LINK, SYMLINK, Member, member, xattrs_of
from node.core.errors import Json, NodeError, io_reason
from node.files import dirfd

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
                verify.stop()
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
            verify.stop()
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
