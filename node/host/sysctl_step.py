"""The `sysctl` step of a change: kernel settings of the host that runs, and the way back.

What the next boot sets stands in files of /etc/sysctl.d; this is for the kernel that runs.
"""

from __future__ import annotations

import os
import re

from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.step_kind import PRE, Kind, Seen, Steps, differing
from node.core.step_state import DONE, UNDONE, UNKNOWN

ROOT = "/proc/sys"
_NAME = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+\Z")
_VALUE = re.compile(r"-?[0-9]{1,10}\Z")
Values = dict[str, str]


def _path(name: str) -> str:
    return os.path.join(ROOT, *name.split("."))


def _now(names: Values) -> Values:
    """Gives the values that are set. Raises CannotRead for one that this kernel does not have."""
    found = {name: " ".join(proc.read_text(_path(name)).split()) for name in names}
    for name, value in found.items():
        if not value:
            raise CannotRead(f"{_path(name)}: this kernel does not tell {name}")
    return found


def _set(values: Values) -> None:
    """Write the values and read them again. Raises NodeError (`sysctl_failed`)."""
    for name, value in values.items():
        try:
            with open(_path(name), "w", encoding="ascii") as file:
                file.write(value)
        except OSError as error:
            raise NodeError(f"{name} = {value}: {error.strerror}", "sysctl_failed",
                            f"sudo sysctl {name}={value}") from None  # fmt: skip
    now = _now(values)
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
        return _now(step["values"]) != step["values"], "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Write what differs and read it again."""
        try:
            before = _now(step["values"])
        except CannotRead as error:
            raise NodeError(str(error), "sysctl_failed") from None
        values = {name: value for name, value in step["values"].items() if before[name] != value}
        if not values:
            return False, "as wanted"
        entry = self.record(steps, values=values, pre={name: before[name] for name in values})
        _set(values)
        steps.finish(entry)
        return True, f"{_words(entry['pre'])} -> {_words(values)}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Find out by what is set now; half of them written is finished by an undo alone."""
        now = _now(entry["values"])
        if now == entry["values"]:
            return DONE
        return UNDONE if now == entry["pre"] else UNKNOWN

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Write what the step found; a value that somebody set later is left."""
        now = _now(entry["values"])
        ours = {name: pre for name, pre in entry["pre"].items()
                if now[name] == entry["values"][name]}  # fmt: skip
        later = {name: now[name] for name in now if now[name] not in
                 (entry["values"][name], entry["pre"][name])}  # fmt: skip
        _set(ours)
        if later:
            return self.leave(entry, f"left as it is now ({_words(later)})")
        return f"{_words(ours)} again" if ours else "was as before"

    def about(self, entry: Json) -> str:
        """Gives the names."""
        return f"sysctl {', '.join(entry['values'])}"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the values that are not as recorded."""
        now, wanted = _now(entry["values"]), entry["pre"] if side == PRE else entry["values"]
        return [line for name in wanted for line in differing(name, now[name], wanted[name])]
