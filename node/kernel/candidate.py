"""candidate: on a kernel that is tried once, wait until it is blessed, else fail: systemd reboots.

The unit's FailureAction does the reboot, so a fault of this program ends at the pinned kernel, too.
"""

from __future__ import annotations

import json
import os
import platform
import time
from typing import Any

from node.core import log, proc, validate
from node.core.errors import Json, NodeError
from node.files.host_lock import Lock

PATH = "/etc/rigbook/candidate.json"
POLL_S = 2.0
# a deploy that blesses at this moment holds the lock
LOCK_S = 120.0
PROGRESS_S = 60.0


def _read() -> Any:
    """Gives the candidate's facts; None once it was blessed (the file is gone)."""
    raw = proc.read_bytes(os.environ.get("RIGBOOK_CANDIDATE") or PATH)
    if raw is None:
        return None
    try:
        found = json.loads(raw)
    except ValueError:
        raise NodeError(f"{PATH} is damaged", "bad_request") from None
    names = ("format", "candidate", "pinned", "budget_s", "change")
    validate.keys(found, PATH, names, names)
    for key in ("candidate", "pinned"):
        validate.release(found[key], f"{PATH}: {key}")
    validate.number(found["budget_s"], f"{PATH}: budget_s", 1, 86400)
    return found


def under_trial() -> str | None:
    """Gives the candidate that runs now and is not blessed yet, or None. Raises NodeError."""
    facts = _read()
    running = platform.release()
    return running if facts is not None and facts["candidate"] == running else None


def _uptime() -> float:
    """Gives the seconds since the kernel's start: the budget counts from there."""
    return float(proc.read_text("/proc/uptime").split()[0])


def run() -> None:
    """Wait for the blessing. Raises NodeError when it does not come within the budget."""
    facts = _read()
    if facts is None:
        log.say("candidate: nothing to wait for")
        return
    running = platform.release()
    if running != facts["candidate"]:
        log.say(
            f"candidate: {facts['candidate']} was not blessed; {running} runs again;"
            f" undo with: rignode undo {facts['change']}"
        )
        return
    _wait(facts)


def _wait(facts: Json) -> None:
    """Wait until the file is gone, up to the budget."""
    told = -PROGRESS_S
    while _read() is not None:
        left = facts["budget_s"] - _uptime()
        if left <= 0:
            # under the lock: a blessing that is under way goes first
            with Lock("candidate falls back", LOCK_S):
                if _read() is None:
                    break
                raise NodeError(
                    f"{facts['candidate']} was not blessed within {facts['budget_s']} s:"
                    f" back to {facts['pinned']}",
                    "not_blessed",
                )
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            log.say(f"candidate: {facts['candidate']} has {left:.0f} s to be blessed")
        time.sleep(POLL_S)
    log.say(f"candidate: {facts['candidate']} is blessed")
