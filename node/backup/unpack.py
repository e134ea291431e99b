"""Unpack a payload into a fresh folder, and prove that what lies there is what was recorded."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import threading

from node.backup import compress, store, verify
from node.backup.walk import FILE, FOLDER, LINK, SYMLINK, Member, member
from node.core.errors import Json, NodeError, io_reason
from node.core.run import TimedOut, run

SYNC_TIMEOUT_S = 1800.0
_CACHE = "__pycache__"
_KIND = {FILE: stat.S_IFREG, SYMLINK: stat.S_IFLNK, FOLDER: stat.S_IFDIR}


def unpack(backup: str, manifest: Json, target: str) -> list[str]:
    """Fill an empty folder of ours; gives the members with setuid, setgid or capabilities.

    Each member is looked at before tar gets it; nothing is run of what is unpacked. It is on the
    disk on return. Raises NodeError when the payload or what came of it is not as recorded.
    """
    said = compress.StderrTail()
    tar = compress.start(
        ["tar", "--extract", "--file=-", f"--directory={target}", "--same-permissions",
         "--same-owner", "--numeric-owner", "--xattrs", "--xattrs-include=*",
         "--delay-directory-restore", "--blocking-factor=512"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said.write_fd,
    )  # fmt: skip
    assert tar.stdin
    compress.enlarge_pipe(tar.stdin)
    fd = tar.stdin.fileno()

    def sink(piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            view = view[os.write(fd, view) :]

    broken = False
    setuid: list[str] = []
    try:
        try:
            setuid = verify.read_back(backup, manifest, f"restore {backup}", sink)
        except BrokenPipeError:
            broken = True  # tar says why
        tar.stdin.close()
        code = tar.wait()
    finally:
        compress.reap_children([tar])
        last = said.last()
    if code != 0 or broken:
        raise NodeError(f"tar ended with {code}: {last or 'no word'}", "tree_failed",
                        "mend that, then run it again")  # fmt: skip
    flush = _Flush(target)
    with flush:
        prove(backup, manifest, target)
    if flush.problem:
        raise NodeError(f"{target} cannot be written to the disk: {flush.problem}", "io")
    return setuid


class _Flush:
    """The file system of a folder is flushed while something else is done."""

    def __init__(self, folder: str) -> None:
        self.problem = ""
        self._folder = folder
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        try:
            done = run(["sync", "-f", self._folder], SYNC_TIMEOUT_S)
            self.problem = "" if done.rc == 0 else done.last_line()
        except TimedOut as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = io_reason(error)

    def __enter__(self) -> _Flush:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def prove(backup: str, manifest: Json, root: str) -> None:
    """Raise NodeError for the first entry that is not as recorded, is missing, or is too many."""
    wrong = first_difference(backup, manifest, root)
    if wrong:
        raise NodeError(f"what was unpacked is not what was recorded: {wrong}", "tree_failed",
                        "look at the file system, then run it again")  # fmt: skip


def first_difference(backup: str, manifest: Json, root: str, bytecode: bool = True) -> str:
    """Gives the first entry in words that is not as recorded, "" when all are. Reads no content.

    Without `bytecode` what an engine that runs writes into `__pycache__` is left out.
    """
    count = 0
    with open(store.of(backup, store.MEMBERS), "rb") as lines:
        for line in lines:
            row = member(line)
            if not bytecode and _CACHE in row.path.split("/"):
                continue
            count += 1
            try:
                wrong = _unlike(row, root)
            except OSError as error:
                wrong = io_reason(error)
            if wrong:
                return f"{row.path}: {wrong}"
    if manifest["roots"] == ["."]:
        there = 1
        for _, folders, files in os.walk(root):
            if not bytecode and _CACHE in folders:
                folders.remove(_CACHE)
            there += len(folders) + len(files)
        if there != count:
            return f"{there} entries, not {count}"
    return ""


def _unlike(row: Member, root: str) -> str:
    """Gives in what an entry differs from its member, or ""."""
    path = os.path.join(root, row.path)
    info = os.lstat(path)
    if row.type == LINK:
        same = info.st_ino == os.lstat(os.path.join(root, row.link)).st_ino
        return "" if same else f"it does not share {row.link}"
    if stat.S_IFMT(info.st_mode) != _KIND[row.type]:
        return "it is of another kind"
    pairs: list[tuple[str, object, object]] = [
        ("owner", (row.uid, row.gid), (info.st_uid, info.st_gid)),
    ]
    if row.type == SYMLINK:
        pairs.append(("target", row.link, os.readlink(path)))
    else:
        pairs.append(("mode", oct(row.mode), oct(stat.S_IMODE(info.st_mode))))
    if row.type == FILE:
        pairs.append(("size", row.size, info.st_size))
        pairs.append(("time", row.mtime, info.st_mtime_ns // 10**9))
    for name, value in row.xattrs.items():
        have = os.getxattr(path, name, follow_symlinks=False)
        pairs.append((name, value, base64.b64encode(have).decode("ascii")))
    for name, wanted, have_now in pairs:
        if wanted != have_now:
            return f"its {name} is {have_now!s:.60}, not {wanted!s:.60}"
    return ""
