"""The `wol` step of a change: a card's Wake-on-LAN letters now, and the way back.

What a card does at the next boot stands in files; this is for the machine that runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import TimedOut, run
from node.machine import nic

KEYS = ("nic", "letters")
TIMEOUT_S = 20.0
_LETTERS = re.compile(r"^(?:d|[pumbagsf]{1,8})$")


def checked(step: Json, where: str) -> Json:
    """Gives a step with every value checked."""
    letters = validate.text(step.get("letters"), f"{where}.letters", 8)
    if not _LETTERS.match(letters):
        raise validate.bad(f"{where}.letters: {letters!r} is not ethtool's wol, such as 'g' or 'd'")
    return {
        "op": "wol",
        "nic": validate.device(step.get("nic"), f"{where}.nic"),
        "letters": letters,
    }


def _now(name: str) -> str | None:
    """Gives the letters that are set, in alphabetical order; None where the card has no WoL."""
    try:
        found = nic.wol(name)["set"]
    except CannotRead as error:
        raise NodeError(str(error), "wol_failed") from None
    return None if found is None else "".join(sorted(found))


def _set(name: str, letters: str) -> None:
    """Set the letters and read them again. Raises NodeError (`wol_failed`)."""
    try:
        done = run(["ethtool", "-s", name, "wol", letters], TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"ethtool -s {name} wol {letters}: {error}", "wol_failed") from None
    now = _now(name)
    if done.rc != 0 or now != "".join(sorted(letters)):
        said = done.last_line() if done.rc != 0 else f"afterwards ethtool says {now or 'nothing'}"
        raise NodeError(f"ethtool -s {name} wol {letters}: {said}", "wol_failed",
                        f"sudo ethtool {name}")  # fmt: skip


def plan(step: Json) -> bool:
    """Gives whether the step would change something; reads only."""
    return _now(step["nic"]) != "".join(sorted(step["letters"]))


def do(step: Json, records: list[Json], record: Callable[[], None]) -> tuple[bool, str]:
    """Do the step; gives whether it changed something, and what."""
    before = _now(step["nic"])
    if before is None:
        raise NodeError(f"{step['nic']} has no Wake-on-LAN: ethtool names none", "wol_failed")
    if before == "".join(sorted(step["letters"])):
        return False, "as wanted"
    entry: Json = {"op": "wol", "state": "intent", "nic": step["nic"], "pre": before,
                   "letters": step["letters"]}  # fmt: skip
    records.append(entry)
    record()
    _set(step["nic"], step["letters"])
    entry["state"] = "done"
    record()
    return True, f"wol {before} -> {step['letters']}"


def settle(entry: Json) -> str | None:
    """Gives what became of a step that a kill left announced: done, undone, or None."""
    try:
        now = _now(entry["nic"])
    except NodeError:
        return None
    wanted = "".join(sorted(entry["letters"]))
    return "done" if now == wanted else "undone" if now == entry["pre"] else None


def undo(entry: Json) -> str:
    """Set the letters that the step found; a later edit, or a reboot, is left as it is."""
    now = _now(entry["nic"])
    if now != "".join(sorted(entry["letters"])):
        return f"left as it is now ({now or 'no Wake-on-LAN'})"
    _set(entry["nic"], entry["pre"])
    return f"wol {entry['pre']} again"
