"""A kind of step that the program does not have: a number in a file. One file, one registry row."""

from __future__ import annotations

from pathlib import Path

from node.change.journal import DONE, UNDONE, UNKNOWN
from node.change.kinds import Kind, Seen, Steps, differing
from node.core import validate
from node.core.errors import Json


class ToyKind(Kind):
    """The number that a file holds."""

    keys = ("file", "value")
    required = ("file", "value")

    def parse(self, step: Json, where: str) -> Json:
        value = validate.number(step["value"], f"{where}.value", 0, 99)
        return {"op": self.op, "file": validate.path(step["file"], f"{where}.file"), "value": value}

    def describe(self, entry: Json) -> str:
        return f"set the toy to {entry['value']:g}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        return _read(step) != step["value"], "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        if _read(step) == step["value"]:
            return False, "as wanted"
        wanted = {key: step[key] for key in ("file", "value")}
        entry = self.record(steps, **wanted, pre=_read(step), post=step["value"])
        Path(step["file"]).write_text(str(step["value"]))
        steps.finish(entry)
        return True, f"is {step['value']:g}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        return {entry["pre"]: UNDONE, entry["post"]: DONE}.get(_read(entry), UNKNOWN)

    def revert(self, entry: Json, overwrite: bool) -> str:
        Path(entry["file"]).write_text(str(entry["pre"]))
        return f"is {entry['pre']:g} again"

    def verify(self, entry: Json, side: str) -> list[str]:
        return differing("the toy", _read(entry), entry[side])


def _read(row: Json) -> float:
    return float(Path(row["file"]).read_text())
