"""Steps of values: sysctl, Wake-on-LAN, settings that are read again."""

from __future__ import annotations

import os
import re

from node import machine
from node.change.journal import DONE, UNDONE, UNKNOWN
from node.change.kinds import PRE, Kind, Seen, Steps, differing
from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import TimedOut, run
from node.core.systemctl import systemctl

# The `reread` step of a change: PID 1 or the journal takes up its files, then and at an undo.
#
# Not a unit step: an undo stops such a unit while files go back, and a journal that is stopped,
# not
# restarted, loses the open ends of every service's output.

COMMANDS = {"manager": ("daemon-reload",), "journald": ("restart", "systemd-journald.service")}


class RereadKind(Kind):
    """What reads its configuration anew: `manager` (PID 1) or `journald`."""

    keys = ("what",)
    required = ("what",)

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with its value checked."""
        return {"op": self.op, "what": validate.choice(step["what"], f"{where}.what", COMMANDS)}

    def describe(self, entry: Json) -> str:
        """Names who reads."""
        return f"{self.op} {entry['what']}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives the command: whoever asks for it has seen that there is something to read."""
        return True, f"systemctl {' '.join(COMMANDS[step['what']])}"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Have it read."""
        entry = self.record(steps, what=step["what"])
        systemctl(*COMMANDS[entry["what"]])
        steps.finish(entry)
        return True, self.describe(entry)

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Have it read once more: twice is as once."""
        systemctl(*COMMANDS[entry["what"]])
        return DONE

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Have it read the files that are back by now (special comes after path)."""
        systemctl(*COMMANDS[entry["what"]])
        return f"{self.describe(entry)} again"

    def about(self, entry: Json) -> str:
        """Gives who reads."""
        return self.describe(entry)


# The `sysctl` step of a change: kernel settings of the host that runs, and the way back.
#
# What the next boot sets stands in files of /etc/sysctl.d; this is for the kernel that runs.

ROOT = "/proc/sys"
_NAME = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+\Z")
_VALUE = re.compile(r"-?[0-9]{1,10}\Z")
Values = dict[str, str]


def _path(name: str) -> str:
    return os.path.join(ROOT, *name.split("."))


def _sysctl_step_now(names: Values) -> Values:
    """Gives the values that are set. Raises CannotRead for one that this kernel does not have."""
    found = {name: " ".join(proc.read_text(_path(name)).split()) for name in names}
    for name, value in found.items():
        if not value:
            raise CannotRead(f"{_path(name)}: this kernel does not tell {name}")
    return found


def _set_sysctl_step(values: Values) -> None:
    """Write the values and read them again. Raises NodeError (`sysctl_failed`)."""
    for name, value in values.items():
        try:
            with open(_path(name), "w", encoding="ascii") as file:
                file.write(value)
        except OSError as error:
            raise NodeError(f"{name} = {value}: {error.strerror}", "sysctl_failed",
                            f"sudo sysctl {name}={value}") from None  # fmt: skip
    now = _sysctl_step_now(values)
    for name, value in values.items():
        if now[name] != value:
            raise NodeError(f"{name} is {now[name]} after {value} was written", "sysctl_failed",
                            f"sudo sysctl {name}={value}")  # fmt: skip


def _words(values: Values) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


class SysctlKind(Kind):
    """Numbers below /proc/sys, by sysctl's names with dots."""

    keys = ("values",)
    required = ("values",)

    def parse(self, step: Json, where: str) -> Json:
        """Gives a step with every value checked."""
        values = step["values"]
        if not isinstance(values, dict) or not values:
            raise validate.bad(f"{where}.values: name at least one sysctl")
        for name, value in values.items():
            if not isinstance(name, str) or not _NAME.match(name):
                raise validate.bad(f"{where}.values: {str(name)[:60]!r} is no sysctl's name")
            if not isinstance(value, str) or not _VALUE.match(value):
                raise validate.bad(f"{where}.values.{name}: {str(value)[:60]!r} is no number")
        return {"op": self.op, "values": dict(values)}

    def describe(self, entry: Json) -> str:
        """Names the values."""
        return f"sysctl {_words(entry['values'])}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something; reads only."""
        return _sysctl_step_now(step["values"]) != step["values"], "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Write what differs and read it again."""
        try:
            before = _sysctl_step_now(step["values"])
        except CannotRead as error:
            raise NodeError(str(error), "sysctl_failed") from None
        values = {name: value for name, value in step["values"].items() if before[name] != value}
        if not values:
            return False, "as wanted"
        entry = self.record(steps, values=values, pre={name: before[name] for name in values})
        _set_sysctl_step(values)
        steps.finish(entry)
        return True, f"{_words(entry['pre'])} -> {_words(values)}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Find out by what is set now; half of them written is finished by an undo alone."""
        now = _sysctl_step_now(entry["values"])
        if now == entry["values"]:
            return DONE
        return UNDONE if now == entry["pre"] else UNKNOWN

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Write what the step found; a value that somebody set later is left."""
        now = _sysctl_step_now(entry["values"])
        ours = {name: pre for name, pre in entry["pre"].items()
                if now[name] == entry["values"][name]}  # fmt: skip
        later = {name: now[name] for name in now if now[name] not in
                 (entry["values"][name], entry["pre"][name])}  # fmt: skip
        _set_sysctl_step(ours)
        if later:
            return self.leave(entry, f"left as it is now ({_words(later)})")
        return f"{_words(ours)} again" if ours else "was as before"

    def about(self, entry: Json) -> str:
        """Gives the names."""
        return f"sysctl {', '.join(entry['values'])}"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the values that are not as recorded."""
        now, wanted = (
            _sysctl_step_now(entry["values"]),
            entry["pre"] if side == PRE else entry["values"],
        )
        return [line for name in wanted for line in differing(name, now[name], wanted[name])]


# The `wol` step of a change: a card's Wake-on-LAN letters now, and the way back.
#
# What a card does at the next boot stands in files; this is for the machine that runs.

TIMEOUT_S = 20.0
_LETTERS = re.compile(r"^(?:d|[pumbagsf]{1,8})$")


def _wol_step_now(name: str) -> str | None:
    """Gives the letters that are set, in alphabetical order; None where the card has no WoL."""
    try:
        found = machine.wol(name)["set"]
    except CannotRead as error:
        raise NodeError(str(error), "wol_failed") from None
    return None if found is None else "".join(sorted(found))


def _set_wol_step(name: str, letters: str) -> None:
    """Set the letters and read them again. Raises NodeError (`wol_failed`)."""
    try:
        done = run(["ethtool", "-s", name, "wol", letters], TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"ethtool -s {name} wol {letters}: {error}", "wol_failed") from None
    now = _wol_step_now(name)
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
        return _wol_step_now(step["nic"]) != _sorted(step["letters"]), "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Set the letters and read them again."""
        before = _wol_step_now(step["nic"])
        if before is None:
            raise NodeError(f"{step['nic']} has no Wake-on-LAN: ethtool names none", "wol_failed")
        if before == _sorted(step["letters"]):
            return False, "as wanted"
        entry = self.record(steps, nic=step["nic"], pre=before, letters=step["letters"])
        _set_wol_step(step["nic"], step["letters"])
        steps.finish(entry)
        return True, f"wol {before} -> {step['letters']}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Find out by what the card says now."""
        now = _wol_step_now(entry["nic"])
        if now == _sorted(entry["letters"]):
            return DONE
        return UNDONE if now == entry["pre"] else UNKNOWN

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Set the letters that the step found; a later edit, or a reboot, is left as it is."""
        now = _wol_step_now(entry["nic"])
        if now == entry["pre"]:
            return "was as before"
        if now != _sorted(entry["letters"]):
            return self.leave(entry, f"left as it is now ({now or 'no Wake-on-LAN'})")
        _set_wol_step(entry["nic"], entry["pre"])
        return f"wol {entry['pre']} again"

    def about(self, entry: Json) -> str:
        """Gives the card."""
        return f"wol of {entry['nic']}"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the letters that are set, where they are not as recorded."""
        wanted = entry["pre"] if side == "pre" else _sorted(entry["letters"])
        return differing(self.about(entry), _wol_step_now(entry["nic"]), wanted)
