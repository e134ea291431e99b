"""The processes that write in a venv: what outlived a killed installer is waited for."""

from __future__ import annotations

import os
import time

from node.core import proc
from node.core.errors import NodeError

# ensurepip on a slow disk
WAIT_S = 60.0


def wait(folder: str) -> None:
    """Wait until no process runs the folder's Python or makes the venv there. Raises NodeError
    (`locked`)."""
    deadline = time.monotonic() + WAIT_S
    while True:
        pids = [pid for pid in proc.pids() if (words := _words(pid))
                and (words[0].startswith(folder + "/") or folder in words)]  # fmt: skip
        if not pids:
            return
        if time.monotonic() >= deadline:
            raise NodeError(
                f"pid {', '.join(map(str, pids))} of an installation that was cut off still works"
                f" in {folder}",
                "locked",
                "wait for it, or end it, then run again",
            )
        time.sleep(0.1)


def _words(pid: int) -> list[str]:
    """Gives a process's command line, empty when it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError:
        return []
