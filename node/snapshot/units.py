"""The systemd units that the request names, as systemd sees them now."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Optional, Tuple

from node.errors import CannotRead, Json
from node.run import TimedOut, run

TIMEOUT_S = 8.0
PROPERTIES = (
    "Id", "Names", "LoadState", "ActiveState", "SubState", "UnitFileState", "FragmentPath",
    "DropInPaths", "ExecStart", "Restart", "NRestarts", "Result", "ExecMainStatus", "MainPID",
    "ActiveEnterTimestampMonotonic", "StateChangeTimestampMonotonic", "NeedDaemonReload",
)  # fmt: skip


def blocks(text: str) -> List[Dict[str, str]]:
    """Gives the blocks of `systemctl show`, one a unit; of a repeated property the last."""
    found: List[Dict[str, str]] = []
    for block in text.split("\n\n"):
        pairs = [line.partition("=") for line in block.splitlines() if "=" in line]
        if pairs:
            found.append({name: value for name, _, value in pairs})
    return found


def exec_start(value: str) -> Tuple[Optional[str], Tuple[str, ...]]:
    """Gives (program, argv) of an ExecStart property.

    systemd prints argv joined by blanks, so an argument that holds a blank comes apart.
    """
    if "argv[]=" not in value:
        return None, ()
    path = value.partition("path=")[2].partition(" ;")[0].strip()
    words = value.partition("argv[]=")[2].partition(" ; ignore_errors=")[0]
    return path, tuple(words.split())


def _since(block: Dict[str, str]) -> Optional[float]:
    """Gives when the unit entered its present state, in Unix seconds."""
    active = block.get("ActiveState") in ("active", "reloading")
    name = "ActiveEnter" if active else "StateChange"
    usec = int(block.get(f"{name}TimestampMonotonic") or 0)
    if not usec:
        return None
    return time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - usec / 1e6)


def _last_log_line(unit: str) -> Optional[str]:
    """Gives the last line the unit's own processes logged, else systemd's last about it."""
    for match in (["_SYSTEMD_UNIT=" + unit], ["-u", unit]):
        try:
            done = run(["journalctl", *match, "-n", "1", "-o", "cat", "-q", "--no-pager"], 4.0)
        except (FileNotFoundError, TimedOut):
            return None
        if done.rc == 0 and done.out.strip():
            return done.out.strip().splitlines()[-1][:500]
    return None


def unit(name: str, block: Dict[str, str]) -> Json:
    """Gives one unit of its `systemctl show` block, without the log line."""
    path, argv = exec_start(block.get("ExecStart", ""))
    main_pid = int(block.get("MainPID") or 0)
    return {
        "name": name,
        "load_state": block.get("LoadState", ""),
        "active_state": block.get("ActiveState", ""),
        "sub_state": block.get("SubState", ""),
        "enabled": block.get("UnitFileState", ""),
        "fragment": block.get("FragmentPath") or None,
        "drop_ins": block.get("DropInPaths", "").split(),
        "exec_start": list(argv),
        "exec_start_exists": None if path is None else os.access(path, os.X_OK),
        "restart": block.get("Restart", ""),
        "restarts": int(block.get("NRestarts") or 0),
        "result": block.get("Result", ""),
        "exit_status": int(block.get("ExecMainStatus") or 0),
        "main_pid": main_pid or None,
        "since_unix_s": _since(block),
        "needs_reload": block.get("NeedDaemonReload") == "yes",
        "last_log_line": None,
    }


def show(names: List[str]) -> List[Dict[str, str]]:
    """Gives one block of properties for each named unit. Raises CannotRead."""
    try:
        done = run(["systemctl", "show", "-p", ",".join(PROPERTIES), "--", *names], TIMEOUT_S)
    except FileNotFoundError:
        raise CannotRead("systemctl not found") from None
    except TimedOut as error:
        raise CannotRead(str(error)) from None
    found = blocks(done.out)
    if done.rc != 0 or len(found) != len(names):
        raise CannotRead(f"systemctl show: {done.last_line()}")
    return found


def read(names: List[str]) -> List[Json]:
    """Gives the named units, in their order; one that is not there has load_state not-found."""
    if not names:
        return []
    units = list(map(unit, names, show(names)))
    troubled = [
        row
        for row in units
        if row["active_state"] in ("failed", "activating") or row["sub_state"] == "auto-restart"
    ]
    with ThreadPoolExecutor(4) as pool:
        lines = list(pool.map(lambda row: _last_log_line(str(row["name"])), troubled))
    for n, row in enumerate(troubled):
        row["last_log_line"] = lines[n]
    return units
