"""Which runs of this machine live: a file for each change, held by flock as long as its run lives.

So a run that was killed is known to be dead at once here; elsewhere its silence has to grow old.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from schema.machine.wake_record import state_folder


def _path(change: str) -> Path:
    return state_folder() / "runs" / change


def is_alive_here(change: str) -> bool | None:
    """Whether a run of this machine has the change now; None: none of this machine ever had it."""
    try:
        fd = os.open(_path(change), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def died_here() -> bool:
    """Whether a run of this machine is dead, and nobody was told what became of its change."""
    try:
        changes = [path.name for path in _path("").iterdir()]
    except OSError:
        return False
    return any(is_alive_here(change) is False for change in changes)


def forget(change: str) -> None:
    """What became of a dead run's change is told: it is none of this machine's any more."""
    with contextlib.suppress(OSError):
        _path(change).unlink()


def deploy_here(change: str) -> str | None:
    """The deploy of the run of this machine that has the change now; None: there is none."""
    if not is_alive_here(change):
        return None
    try:
        return _path(change).read_text()
    except OSError:
        return None


class AliveHere:
    """One run's file. A folder that cannot be written is no reason not to run.

    `succeeds` says that a run of this machine had the change before, and is dead.
    """

    def __init__(self, change: str, deploy: str) -> None:
        self._path = _path(change)
        self._deploy = deploy
        self._fd = -1
        self.succeeds = False

    def hold(self) -> bool:
        """Says that the run lives, until `let_go` or its end, unless another one that lives has the
        change; `succeeds`.
        """
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                had = self._path.exists()
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(fd)
                else:
                    os.truncate(fd, 0)
                    os.write(fd, self._deploy.encode())
                    self._fd, self.succeeds = fd, had
        return self.succeeds

    @property
    def held(self) -> bool:
        """Whether this run has the file."""
        return self._fd >= 0

    def let_go(self, settled: bool) -> None:
        """Ends it; of a change that is not settled the file stays: its run is dead."""
        if self._fd < 0:
            return
        if settled:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._fd)
        self._fd, self.succeeds = -1, False
