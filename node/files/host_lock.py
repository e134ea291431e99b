"""The host's one lock: flock on a file, so it ends with the process that holds it."""

from __future__ import annotations

import fcntl
import json
import os
import time

from node.core import proc
from node.core.errors import NodeError
from node.files import state_dir


class Lock:
    """The exclusive lock, as a context manager.

    Takes the verb (for the holder's text) and how long to wait, in seconds. Raises NodeError
    (`locked`) that names the holder.
    """

    def __init__(self, verb: str, wait_s: float = 2.0) -> None:
        self.verb = verb
        self.wait_s = wait_s
        self.fd = -1

    def __enter__(self) -> Lock:
        state_dir.ensure()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.fd = os.open(state_dir.lock_path(), flags, 0o600)
        deadline = time.monotonic() + self.wait_s
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(self.fd)
                    raise NodeError(
                        f"the lock is held by {holder() or 'an unknown process'}",
                        "locked",
                        "wait for it, or look with: rignode status",
                    ) from None
                time.sleep(0.05)
        self._write_holder()
        return self

    def _write_holder(self) -> None:
        """Write who holds it; the text is only information, flock is the lock."""
        stat = proc.stat(os.getpid())
        text = json.dumps(
            {
                "pid": os.getpid(),
                "start_ticks": stat.start_ticks if stat else 0,
                "boot_id": proc.boot_id(),
                "verb": self.verb,
                "since_unix_s": time.time(),
            }
        )
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text.encode(), 0)

    def keep_over_exec(self) -> None:
        """Let a program that replaces this one go on holding the lock."""
        os.set_inheritable(self.fd, True)

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self.fd, 0)
        os.close(self.fd)


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
    """Gives whether the lock is held now, and by whom; writes nothing.

    It tries a shared flock for an instant; those who want the exclusive one try again for longer.
    """
    try:
        fd = os.open(state_dir.lock_path(), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False, None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True, holder() or "an unknown process"
    finally:
        os.close(fd)
    return False, None
