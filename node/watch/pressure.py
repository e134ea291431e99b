"""Memory that is about to run out on the host that watches: told once, and once when it is over."""

from __future__ import annotations

import os
import re
import time

from node.core import log, proc
from node.core.errors import Json
from node.files import state_dir, state_file
from node.watch.config import Watch

# of all memory; an engine on unified memory leaves 5 % in use
LOW, OVER, NEAR = 0.03, 0.05, 0.10
# the share of a minute in which every task waited for memory (PSI, "full avg60"), per cent
STALLED, CALM = 10.0, 5.0
# less is a moment; more between two looks is a watch that was off
SOON_S = 600.0
FALLING_LOOKS = 3
MIB = 1 << 20
_PSI = re.compile(r"^full .*\bavg60=([0-9.]+)", re.MULTILINE)


def fresh() -> Json:
    """Gives the state before the first look."""
    return {"format": 1, "low": False, "falling": 0, "available": 0, "looked_unix_s": 0.0}


def read(root: str) -> Json | None:
    """Gives MemAvailable and MemTotal in bytes and the stalled share; None where not told."""
    found = {}
    for line in proc.read_text(f"{root}/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(rest.split()[0]) * 1024
    if len(found) < 2:
        return None
    stalled = _PSI.search(proc.read_text(f"{root}/pressure/memory"))
    return {
        "available": found["MemAvailable"],
        "total": found["MemTotal"],
        "stalled": float(stalled[1]) if stalled else None,
    }


def _ends_soon(before: Json, seen: Json, now: float) -> bool:
    """Gives whether memory is gone within SOON_S if it goes on as since the last look."""
    passed, lost = now - before["looked_unix_s"], before["available"] - seen["available"]
    if not 0 < passed <= SOON_S or lost <= 0 or seen["available"] > NEAR * seen["total"]:
        return False
    return bool(seen["available"] / lost * passed < SOON_S)


def judge(before: Json, seen: Json, now: float) -> tuple[Json, str | None]:
    """Gives the state after one look, and what is to be told. Pure."""
    falling = before["falling"] + 1 if _ends_soon(before, seen, now) else 0
    share, stalled = seen["available"] / seen["total"], seen["stalled"] or 0.0
    bad = share < LOW or stalled >= STALLED or falling >= FALLING_LOOKS
    good = share > OVER and stalled < CALM and falling == 0
    low = bad or (before["low"] and not good)
    after = {"format": 1, "low": low, "falling": falling, "available": seen["available"],
             "looked_unix_s": now}  # fmt: skip
    if low == before["low"]:
        return after, None
    told = f"{seen['available'] // MIB} of {seen['total'] // MIB} MiB available"
    if seen["stalled"] is not None:
        told += f", {stalled:.0f} % of the last minute spent waiting for memory"
    if falling >= FALLING_LOOKS:
        told += f", and falling: gone within {SOON_S / 60:.0f} min as it goes"
    return after, f"memory runs out: {told}" if low else f"memory is there again: {told}"


def file_path() -> str:
    """Gives where the state lies between two looks."""
    return os.path.join(state_dir.root(), "watch", "memory.json")


def is_low() -> bool:
    """Gives whether the last look found that memory runs out."""
    return bool(state_file.load(file_path(), fresh())["low"])


def look(watch: Watch) -> list[Json]:
    """One look; gives the notice for the webhook where there is one, and tells the journal."""
    # another folder for the tests
    seen, now = read(os.environ.get("RIGBOOK_PROC", "/proc")), time.time()
    if seen is None:
        return []
    after, text = judge(state_file.load(file_path(), fresh()), seen, now)
    state_file.save(file_path(), after)
    if text is None:
        return []
    said = f"{watch.node} of {watch.rig}: {text}"
    log.say(said, log.WARNING)
    status = "memory-low" if after["low"] else "memory-ok"
    return [{"rig": watch.rig, "node": watch.node, "model": watch.endpoint.model,
             "status": status, "text": said}]  # fmt: skip
