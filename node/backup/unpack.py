"""Unpack a payload into a fresh folder, and prove that what lies there is what was recorded."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

from node.backup import compress, verify
from node.backup.compare import Comparison, Mark
from node.core.errors import Json, NodeError, io_reason
from node.core.run import TimedOut, run
from node.files import dirfd

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
    said = compress.StderrTail()
    tar = compress.start(
        ["tar", "--extract", "--file=-", f"--directory=/proc/self/fd/{folder}",
         "--same-permissions", "--same-owner", "--numeric-owner", "--xattrs", "--xattrs-include=*",
         "--delay-directory-restore", "--blocking-factor=512"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said.write_fd, pass_fds=[folder],
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
            setuid = verify.read(backup, manifest, f"restore {backup}", sink)
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
