"""The section `health` of a snapshot, and the verb of the same name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from node.core import proc
from node.core.errors import Json, guarded
from node.health import addresses, counters, disks, driver, gpus, kernel_log, pci

LIMIT_S = 12.0
# A disk that is busy keeps a process waiting for some tenths of a second.
STUCK_S = 2.0
_KTHREADD = 2
_PARTS: dict[str, Callable[[], Any]] = {
    "gpus": gpus.read,
    "driver": driver.read,
    "kernel": kernel_log.read,
    "journal": kernel_log.kept,
    "pci": pci.read,
    "counters": counters.read,
    "disks": disks.read,
    "read_only": disks.turned_read_only,
    "fixed": disks.fixed,
    "addresses": addresses.read,
}


def _asleep() -> dict[int, tuple[str, str]]:
    """Gives the processes in uninterruptible sleep: comm, and how often each has given way.

    A thread of the kernel's own may wait like that all its life.
    """
    found = {}
    for pid in proc.pids():
        row = proc.stat(pid)
        if row is not None and row.state == "D" and _KTHREADD not in (pid, row.ppid):
            status = proc.read_text(f"/proc/{pid}/status")
            gave = [line for line in status.splitlines() if "voluntary_ctxt_switches" in line]
            found[pid] = (row.comm, f"{row.start_ticks} {gave}")
    return found


def _stuck(before: dict[int, tuple[str, str]], until: float) -> list[Json]:
    """Gives those of `before` that sleep on until then, without having given way once."""
    while True:
        now = _asleep() if before else {}
        before = {pid: row for pid, row in before.items() if now.get(pid) == row}
        if not before or time.monotonic() >= until:
            return [{"pid": pid, "name": row[0]} for pid, row in before.items()]
        time.sleep(0.1)


def read() -> Json:
    """Gives all parts; each waits in a thread of its own, and one that is late says so.

    `stuck` are processes that stay in uninterruptible sleep for STUCK_S; without any, nobody waits.
    """
    answers: Json = {}
    threads = []
    started, before = time.monotonic(), _asleep()
    for name, part in _PARTS.items():

        def work(name: str = name, part: Callable[[], Any] = part) -> None:
            answers[name] = guarded(part)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        threads.append(thread)
    until = started + LIMIT_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    stuck = _stuck(before, started + STUCK_S)
    late = {"unreadable": f"no answer in {LIMIT_S:g} s"}
    parts = kernel_log.with_kept({name: answers.get(name, late) for name in _PARTS})
    return {**parts, "stuck": stuck}


def health(request: Json) -> Json:
    """`health`: the section alone, with the seconds that it took."""
    started = time.monotonic()
    return {**read(), "took_s": round(time.monotonic() - started, 4)}
