"""How the host is set up against a hang and against memory that runs out; read-only."""

from __future__ import annotations

import glob
import json
import os
from typing import Any

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run, which
from node.machine import board
from node.snapshot import memory

TIMEOUT_S = 5.0
WANTED = "/etc/rigbook/host.json"
# what deploys/host.py may set; a kernel without one of them does not have that panic
SYSCTLS = (
    "kernel.panic", "kernel.softlockup_panic", "kernel.hung_task_panic",
    "kernel.hung_task_timeout_secs", "vm.panic_on_oom",
)  # fmt: skip


def _line(path: str) -> str | None:
    """Gives a small file's text; None where there is none, or it says that it has nothing."""
    raw = proc.read_bytes(path)
    text = raw.decode("utf-8", "replace").strip() if raw else ""
    return None if text in ("", "(null)") else text


def watchdogs(root: str = "") -> list[Json]:
    """Gives the hardware watchdogs. `state` None: a kernel without CONFIG_WATCHDOG_SYSFS."""
    rows: list[Json] = []
    for folder in sorted(glob.glob(f"{root}/sys/class/watchdog/watchdog*")):
        seconds = _line(f"{folder}/timeout")
        rows.append({
            "name": os.path.basename(folder),
            "identity": _line(f"{folder}/identity"),
            "state": _line(f"{folder}/state"),
            "timeout_s": int(seconds) if seconds else None,
        })  # fmt: skip
    return rows


def runtime_watchdog_s() -> float:
    """Gives how long PID 1 may be silent, 0 for ever, as PID 1 itself says. Raises CannotRead."""
    path = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager", "RuntimeWatchdogUSec"]  # fmt: skip
    try:
        done = run(["busctl", "get-property", *path], TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise CannotRead(f"busctl: {error}") from None
    kind, _, value = done.out.strip().partition(" ")
    if done.rc != 0 or kind != "t" or not value.isdigit():
        raise CannotRead(f"systemd does not say its RuntimeWatchdogUSec: {done.last_line()}")
    # all bits set stand for infinity
    return 0.0 if int(value) >= 1 << 63 else int(value) / 1e6


def journal(root: str = "") -> Json:
    """Gives whether the journal outlives a boot, and its bytes on the disk."""
    machine = proc.read_text(f"{root}/etc/machine-id").strip()
    kept = f"{root}/var/log/journal/{machine}"
    files = [os.stat(path).st_size for path in glob.glob(f"{kept}/*.journal")]
    # journald writes to one of the two
    volatile = os.path.exists(f"{root}/run/log/journal/{machine}/system.journal")
    return {"persistent": bool(files) and not volatile, "bytes": sum(files)}


def guard() -> Json:
    """Gives the memory guard's program and the words that it runs with; None: it does not run."""
    words = next((proc.argv(pid) for pid in proc.pids() if _comm(pid) == "earlyoom"), None)
    return {"program": which("earlyoom"), "argv": None if words is None else list(words)}


def _comm(pid: int) -> str:
    return _line(f"/proc/{pid}/comm") or ""


def sshd_oom_score_adj() -> int | None:
    """Gives how far the listening sshd is from being killed; None where none listens by itself."""
    for pid in proc.pids():
        seen = proc.stat(pid)
        if seen is not None and seen.ppid == 1 and _comm(pid) == "sshd":
            text = _line(f"/proc/{pid}/oom_score_adj")
            return int(text) if text else None
    return None


def wanted() -> Json | None:
    """Gives what deploys/host.py wrote down as wanted; None where it never ran here."""
    raw = proc.read_bytes(WANTED)
    if raw is None:
        if os.path.exists(WANTED):
            raise CannotRead(f"{WANTED} cannot be read")
        return None
    try:
        found: Any = json.loads(raw.decode("utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CannotRead(f"{WANTED} is not JSON")
    return found


def read() -> Json:
    """Gives the host's settings as they are. Raises CannotRead and OSError."""
    return {
        "virtual": board.virtual(),
        "watchdogs": watchdogs(),
        "runtime_watchdog_s": runtime_watchdog_s(),
        "sysctls": memory.sysctls(SYSCTLS),
        "journal": journal(),
        "pstore": _line("/sys/module/pstore/parameters/backend"),
        "guard": guard(),
        "sshd_oom_score_adj": sshd_oom_score_adj(),
        "wanted": wanted(),
    }
