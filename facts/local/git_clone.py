"""What a local git clone on the operator's machine knows of commits; read-only, no network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 60


class CloneError(Exception):
    """The folder is no clone, or git does not answer; the text is git's own line."""


@dataclass(frozen=True)
class Clone:
    """A clone by its folder. Nothing is fetched: an object that is not there is unknown."""

    path: str
    shallow: bool

    def known(self, commit: str) -> str | None:
        """The full id of a commit, None when the clone has none or several that begin so."""
        done = _git(self.path, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
        return done.stdout.strip() or None if done.returncode == 0 else None

    def holds(self, commit: str, base: str) -> bool | None:
        """Whether `commit` is an ancestor of `base`; None where a shallow clone cannot say no."""
        done = _git(self.path, "merge-base", "--is-ancestor", commit, base)
        if done.returncode == 0:
            return True
        return None if self.shallow or done.returncode != 1 else False

    def merged(self, number: str) -> Sequence[str]:
        """The commits on any branch whose subject ends with `(#number)`, newest first."""
        subject = f"(#{number})"
        done = _git(
            self.path, "log", "--all", "--fixed-strings", f"--grep={subject}", "--format=%H %s"
        )
        lines = (line.partition(" ") for line in done.stdout.splitlines())
        return [commit for commit, _, text in lines if text.rstrip().endswith(subject)]


def clone_at(path: str) -> Clone:
    """The clone in a folder. CloneError says why there is none."""
    if not Path(path).is_dir():
        raise CloneError(f"{path} is not a folder")
    done = _git(path, "rev-parse", "--is-shallow-repository")
    if done.returncode != 0:
        line = (done.stderr.strip().splitlines() or ["no git repository"])[-1]
        raise CloneError(f"{path}: {line}")
    return Clone(path, done.stdout.strip() == "true")


def _git(path: str, *args: str) -> subprocess.CompletedProcess[str]:
    # A partial clone would fetch what it lacks, a hook or a pager could run: none of it here.
    env = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C",
           "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}  # fmt: skip
    argv = ["git", "--no-replace-objects", "-c", "core.hooksPath=/dev/null",
            "-c", "core.fsmonitor=false", "-C", path, *args]  # fmt: skip
    try:
        return subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise CloneError("git is not installed on this machine") from None
    except subprocess.TimeoutExpired:
        raise CloneError(f"{path}: git did not answer in {TIMEOUT_S} s") from None
