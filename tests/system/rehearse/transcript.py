"""What a row of incidents took, kept line by line, for the table of docs/reference/rehearsing.md.

`python -m tests.system.rehearse.transcript FILE`: the page's table from the lines in FILE,
which the tests write where RIGBOOK_TRANSCRIPT names it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.incidents import HELD

VARIABLE = "RIGBOOK_TRANSCRIPT"
PAGE = Path(__file__).resolve().parents[3] / "docs/reference/rehearsing.md"
BEGIN, END = "<!-- transcript: begin -->\n", "<!-- transcript: end -->\n"


@dataclass(frozen=True)
class Line:
    """One incident that was dealt and mended. `began` is in Unix seconds."""

    began: float
    rig: str
    code: str
    named: Sequence[str]
    mends: Sequence[str]
    seconds: dict[str, float]

    @property
    def row(self) -> str:
        """Its row of the page's table; the whole is what an operator would have waited."""
        whole = sum(self.seconds.values())
        seconds = " | ".join(f"{value:.0f}" for value in self.seconds.values())
        at = time.strftime("%H:%M:%S", time.gmtime(self.began))
        named, mends = ", ".join(self.named), ", then ".join(self.mends)
        return f"| {at} | {self.rig} | {self.code} | {named} | {mends} | {seconds} | {whole:.0f} |"


def note(line: Line) -> None:
    """Prints a line, and keeps it where the environment names a file."""
    print(f"TABLE {line.row}")
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(dataclasses.asdict(line)) + "\n")


def table(lines: Sequence[Line]) -> str:
    """The page's part: a row an incident, in the order in which they were dealt."""
    ordered = sorted(lines, key=lambda line: line.began)
    codes = {line.code for line in ordered}
    others = ", ".join(code for code in HELD if code not in codes) or "none"
    day = time.strftime("%Y-%m-%d", time.gmtime(ordered[0].began))
    return (
        f"{day}, UTC, on 2 cores that other work shared: {len(ordered)} incidents, {len(codes)} "
        f"different ones. A run that was cut off is not here. Not dealt: {others}.\n\n"
        "| at | twin | incident | named | mended by | break s | doctor s | mend s | judge s | "
        "whole s |\n|---|---|---|---|---|---|---|---|---|---|\n"
        + "".join(f"{line.row}\n" for line in ordered)
    )


def put(page: str, lines: Sequence[Line]) -> str:
    """The page with the table of these lines between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "the page has no place for a transcript"
    return f"{before}{BEGIN}\n{table(lines)}\n{END}{after}"


def read(text: str) -> list[Line]:
    """The lines of a file that `note` wrote."""
    return [Line(**json.loads(row)) for row in text.splitlines()]


if __name__ == "__main__":
    PAGE.write_text(put(PAGE.read_text(), read(Path(sys.argv[1]).read_text())))
