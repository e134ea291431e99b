"""Run a command with a time limit and a known locale, and end its whole process group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from node.core.errors import CannotRead


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


def environment(locale: Mapping[str, str] | None = None) -> dict[str, str]:
    """Gives the environment for every command: no pager, the sbin folders on PATH, and the C locale
    or the variables of another one; nothing of the caller's own locale.
    """
    env = {key: value for key, value in os.environ.items()
           if key not in ("LANG", "LANGUAGE") and not key.startswith("LC_")}  # fmt: skip
    env.update(locale or {"LC_ALL": "C"}, SYSTEMD_PAGER="", SYSTEMD_COLORS="0")
    path = env.get("PATH", "/usr/bin:/bin")
    # a non-login shell of a plain user often lacks the sbin folders, where ip and modinfo live
    missing = [d for d in ("/usr/sbin", "/sbin") if d not in path.split(":")]
    env["PATH"] = ":".join([path, *missing])
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
) -> Done:
    """Run argv without a shell and without stdin, in the C locale unless another one is given; it
    keeps the descriptors `pass_fds`.

    Gives its exit status and output. Raises FileNotFoundError when there is no such program and
    TimedOut after `timeout_s` seconds, with the process group killed.
    """
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(locale),
        start_new_session=True,
        pass_fds=pass_fds,
    )
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        # one in uninterruptible sleep cannot be waited for: it is left to init
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=1)
        raise TimedOut(f"{argv[0]} did not answer in {timeout_s:g} s") from None
    return Done(child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
