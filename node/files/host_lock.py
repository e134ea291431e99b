"""The host's one lock: flock on a file, so it ends with the process that holds it."""

from __future__ import annotations

import json
import os
import time

from node.core import flock, proc
from node.core.errors import NodeError
from node.files import state_dir


class Lock(flock.FileLock):
    """The exclusive lock, as a context manager.

    Takes the verb (for the holder's text) and how long to wait, in seconds. Raises NodeError
    (`locked`) that names the holder.
    """

    # the text is only information, flock is the lock
    tells = True

    def __init__(self, verb: str, wait_s: float = 2.0) -> None:
        super().__init__(wait_s)
        self.verb = verb

    def path(self) -> str:
        """Gives the lock's file."""
        state_dir.ensure()
        return state_dir.lock_path()

    def refused(self, said: str) -> NodeError:
        """Gives the error that names the holder."""
        return NodeError(
            f"the lock is held by {holder() or 'an unknown process'}",
            "locked",
            "wait for it, or look with: rignode status",
        )

    def text(self) -> str:
        """Gives who holds it, so that another boot's or a reused pid is told from it."""
        stat = proc.stat(os.getpid())
        return json.dumps(
            {
                "pid": os.getpid(),
                "start_ticks": stat.start_ticks if stat else 0,
                "boot_id": proc.boot_id(),
                "verb": self.verb,
                "since_unix_s": time.time(),
            }
        )


def holder() -> str | None:
    """Gives who the lock file names, or None when that process is gone (or of another boot)."""
    try:
        known = json.loads(proc.read_text(state_dir.lock_path()))
        pid, ticks = int(known["pid"]), int(known["start_ticks"])
        stat = proc.stat(pid)
        if stat is None or stat.start_ticks != ticks or known["boot_id"] != proc.boot_id():
            return None
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(known["since_unix_s"]))
        return f"pid {pid} ({known['verb']}, since {since})"
    except (ValueError, KeyError, TypeError):
        return None


def held() -> tuple[bool, str | None]:
    """Gives whether the lock is held now, and by whom; writes nothing."""
    if flock.held_by(state_dir.lock_path()) is None:
        return False, None
    return True, holder() or "an unknown process"
