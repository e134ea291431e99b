"""The `wol` step of a change: a card's Wake-on-LAN letters now, and the way back.

What a card does at the next boot stands in files; this is for the machine that runs.
"""

from __future__ import annotations

import re

from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import TimedOut, run
from node.core.step_kind import Kind, Seen, Steps, differing
from node.core.step_state import DONE, UNDONE, UNKNOWN
from node.machine import nic

TIMEOUT_S = 20.0
_LETTERS = re.compile(r"^(?:d|[pumbagsf]{1,8})$")


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


def _sorted(letters: str) -> str:
    return "".join(sorted(letters))


class WolKind(Kind):
    """The letters of one card, as ethtool takes them."""

    keys = ("nic", "letters")

    def parse(self, step: Json, where: str) -> Json:
        """Gives a step with every value checked."""
        letters = validate.text(step.get("letters"), f"{where}.letters", 8)
        if not _LETTERS.match(letters):
            raise validate.bad(
                f"{where}.letters: {letters!r} is not ethtool's wol, such as 'g' or 'd'"
            )
        return {
            "op": self.op,
            "nic": validate.device(step.get("nic"), f"{where}.nic"),
            "letters": letters,
        }

    def describe(self, entry: Json) -> str:
        """Names the letters and the card."""
        return f"wol {entry['letters']} on {entry['nic']}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something; reads only."""
        return _now(step["nic"]) != _sorted(step["letters"]), "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Set the letters and read them again."""
        before = _now(step["nic"])
        if before is None:
            raise NodeError(f"{step['nic']} has no Wake-on-LAN: ethtool names none", "wol_failed")
        if before == _sorted(step["letters"]):
            return False, "as wanted"
        entry = self.record(steps, nic=step["nic"], pre=before, letters=step["letters"])
        _set(step["nic"], step["letters"])
        steps.finish(entry)
        return True, f"wol {before} -> {step['letters']}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Find out by what the card says now."""
        now = _now(entry["nic"])
        if now == _sorted(entry["letters"]):
            return DONE
        return UNDONE if now == entry["pre"] else UNKNOWN

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Set the letters that the step found; a later edit, or a reboot, is left as it is."""
        now = _now(entry["nic"])
        if now == entry["pre"]:
            return "was as before"
        if now != _sorted(entry["letters"]):
            return self.leave(entry, f"left as it is now ({now or 'no Wake-on-LAN'})")
        _set(entry["nic"], entry["pre"])
        return f"wol {entry['pre']} again"

    def about(self, entry: Json) -> str:
        """Gives the card."""
        return f"wol of {entry['nic']}"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the letters that are set, where they are not as recorded."""
        wanted = entry["pre"] if side == "pre" else _sorted(entry["letters"])
        return differing(self.about(entry), _now(entry["nic"]), wanted)
