"""Run a command with a time limit and a known locale, and end its whole process group."""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import pwd
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from node.core.errors import CannotRead
from node.rules.text import DOCKER_SOCKET

# Work that waits, at the same time; concurrent.futures costs every snapshot 9 ms of imports.

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(work: Callable[[Item], Result], items: Iterable[Item], most: int) -> list[Result]:
    """Gives work(item) for each item, in their order, at most `most` at a time.

    Raises what the first item that failed raised; the others are done all the same.
    """
    todo = list(items)
    left = iter(range(len(todo)))
    found: dict[int, Result] = {}
    failed: dict[int, BaseException] = {}

    def take() -> None:
        # one iterator of numbers for all: next() of it is one step under the interpreter's lock
        for number in left:
            try:
                found[number] = work(todo[number])
            except BaseException as error:
                failed[number] = error

    # daemon: one stuck in the kernel must not keep the program from ending
    helpers = [threading.Thread(target=take, daemon=True) for _ in range(min(most, len(todo)) - 1)]
    for helper in helpers:
        helper.start()
    take()
    for helper in helpers:
        helper.join()
    if failed:
        raise failed[min(failed)]
    return [found[number] for number in range(len(todo))]


class Done(NamedTuple):
    """A finished command: exit status, standard output and standard error as text."""

    rc: int
    out: str
    err: str

    def last_line(self) -> str:
        """Gives the last non-empty line of stderr, else of stdout, else the exit status."""
        for text in (self.err, self.out):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1]
        return f"exit status {self.rc}"


class TimedOut(CannotRead):
    """The command did not end in its time; its process group was killed."""


def not_roots(path: str) -> str | None:
    """Gives the first folder, link or file on the way to a path that another user than root may
    change, None where none is; what is not there is nobody's. Raises OSError.
    """
    # Debian's own, root-equivalent by its policy: /usr/local is the group's
    trusted = {0, *(row.gr_gid for row in grp.getgrall() if row.gr_name == "staff")}
    here, todo = "/", path.split("/")[::-1]
    for _ in range(1000):
        try:
            info = os.lstat(here)
        except FileNotFoundError:
            return None
        link, mode = stat.S_ISLNK(info.st_mode), info.st_mode
        by_group = mode & stat.S_IWGRP and info.st_gid not in trusted
        # in a sticky folder only the owner of an entry may replace it
        sticky = link or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX)
        if info.st_uid != 0 or (not sticky and (mode & stat.S_IWOTH or by_group)):
            return here
        if link:
            target = os.readlink(here)
            here = "/" if target.startswith("/") else os.path.dirname(here)
            todo += target.split("/")[::-1]
        while todo and todo[-1] in ("", "."):
            todo.pop()
        if not todo:
            return None
        name = todo.pop()
        here = os.path.dirname(here) if name == ".." else os.path.join(here, name)
    return path


@functools.lru_cache(maxsize=8)
def _roots_own(path: str) -> str:
    """Gives a PATH without the folders that another user than root may change."""
    kept = []
    for row in path.split(":"):
        with contextlib.suppress(OSError):  # below a file, or on a mount that does not answer
            kept += [row] if row.startswith("/") and not not_roots(row) else []
    return ":".join(kept) or "/usr/sbin:/usr/bin:/sbin:/bin"


def environment(locale: Mapping[str, str] | None = None) -> dict[str, str]:
    """Gives the environment for every command: no pager, the sbin folders on PATH, and the C locale
    or the variables of another one; nothing of the caller's own locale or docker. Root finds no
    program in a folder of another user, and no configuration in his home.
    """
    env = {key: value for key, value in os.environ.items()
           if key not in ("LANG", "LANGUAGE") and not key.startswith("LC_")}  # fmt: skip
    env.update(locale or {"LC_ALL": "C"}, SYSTEMD_PAGER="", SYSTEMD_COLORS="0")
    # the docker that node/docker/api.py asks, whatever context the command is set to
    env["DOCKER_HOST"] = f"unix://{DOCKER_SOCKET}"
    path = env.get("PATH", "/usr/bin:/bin")
    # a non-login shell of a plain user often lacks the sbin folders, where ip and modinfo live
    missing = [d for d in ("/usr/sbin", "/sbin") if d not in path.split(":")]
    env["PATH"] = ":".join([path, *missing])
    if os.geteuid() == 0:
        env.update(PATH=_roots_own(env["PATH"]), HOME=pwd.getpwuid(0).pw_dir)
    return env


def which(name: str) -> str | None:
    """Gives the path of an executable on PATH, or None."""
    for folder in environment()["PATH"].split(":"):
        path = os.path.join(folder or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def run(
    argv: Sequence[str],
    timeout_s: float,
    locale: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdin: str | None = None,
) -> Done:
    """Run argv without a shell, in the C locale unless another one is given; it reads `stdin`, or
    nothing, and keeps the descriptors `pass_fds`.

    Gives its exit status and output. Raises FileNotFoundError when there is no such program and
    TimedOut after `timeout_s` seconds, with the process group killed.
    """
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(locale),
        start_new_session=True,
        pass_fds=pass_fds,
    )
    try:
        out, err = child.communicate(None if stdin is None else stdin.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        # one in uninterruptible sleep cannot be waited for: it is left to init
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=1)
        raise TimedOut(f"{argv[0]} did not answer in {timeout_s:g} s") from None
    return Done(child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
