"""End processes by identity: a pidfd each, looked at again once it is open, TERM, then KILL."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple

from node.core import proc
from node.core.errors import NodeError
from node.reap.find import Candidate, is_dead, is_stuck

# the same numbers on every architecture; Python has them from 3.9 on (os.pidfd_open)
_PIDFD_SEND_SIGNAL = 424
_PIDFD_OPEN = 434


class Ended(NamedTuple):
    """What became of one process.

    `how` is "TERM" or "KILL" (it ended after that), "gone" (by itself), "changed" (the pid is
    another process now: nothing was signalled) or "alive" (KILL did not end it in its time).
    """

    candidate: Candidate
    how: str


def _syscall(number: int, *args: int) -> int:
    """Gives the result of a system call. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(arg) for arg in args]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def pidfd_open(pid: int) -> int | None:
    """Gives a descriptor of the process, or None when there is none of that pid.

    Raises NodeError on a kernel without pidfds (before Linux 5.3).
    """
    try:
        return _syscall(_PIDFD_OPEN, pid, 0)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return None
        raise NodeError(
            f"pidfd_open: {error.strerror}: nothing is ended without it", "no_pidfd",
            "Linux 5.3 or newer is needed",
        ) from None  # fmt: skip


def send(fd: int, number: int) -> None:
    """Signal the process of a pidfd; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        _syscall(_PIDFD_SEND_SIGNAL, fd, number, 0, 0)


def wait(fds: Iterable[int], seconds: float) -> set[int]:
    """Gives the pidfds whose processes have ended; returns when all have, or after `seconds`."""
    pending, ended = set(fds), set()
    poll = select.poll()
    for fd in pending:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + seconds
    while pending:
        left = deadline - time.monotonic()
        for fd, _ in poll.poll(max(0, int(left * 1000))):
            poll.unregister(fd)
            pending.discard(fd)
            ended.add(fd)
        if left <= 0:
            break
    return ended


def is_same(one: Candidate) -> bool | None:
    """Gives True when the pid is still the process that was judged, None when it is gone."""
    now = proc.stat(one.stat.pid)
    if now is None or is_dead(now):
        return None
    if now.start_ticks != one.stat.start_ticks or proc.boot_id() != one.boot_id:
        return False
    if now.state == "D" and is_stuck(now):
        return True
    argv = proc.argv(one.stat.pid)
    return proc.exe(one.stat.pid) == one.exe and (argv[0] if argv else now.comm) == one.argv0


def end(candidates: list[Candidate], term_s: float, kill_s: float) -> list[Ended]:
    """End the processes: TERM, up to `term_s` seconds, KILL, up to `kill_s` seconds."""
    fds: dict[int, Candidate] = {}
    results: list[Ended] = []
    try:
        for one in candidates:
            fd = pidfd_open(one.stat.pid)
            # compared only now: from here on the descriptor cannot become another process
            same = None if fd is None else is_same(one)
            if fd is not None:
                fds[fd] = one
            if not same:
                results.append(Ended(one, "gone" if same is None else "changed"))
        todo = [fd for fd, one in fds.items() if all(row.candidate is not one for row in results)]
        for number, name, seconds in (
            (signal.SIGTERM, "TERM", term_s),
            (signal.SIGKILL, "KILL", kill_s),
        ):
            for fd in todo:
                send(fd, number)
            ended = wait(todo, seconds)
            results += [Ended(fds[fd], name) for fd in todo if fd in ended]
            todo = [fd for fd in todo if fd not in ended]
        results += [Ended(fds[fd], "alive") for fd in todo]
    finally:
        for fd in fds:
            os.close(fd)
    return results
