"""`python -m docs.site.demo LOG`: draws docs/demo.svg from what a run of `make demo` printed.

LOG is the whole output, as of `make demo 2>&1 | tee LOG`. A run that failed is not drawn. The
middle of a long phase is left out, and the picture says how many lines.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from docs.site.stage import DEMO, ROOT

COLUMNS, FIRST, LAST = 108, 4, 12
PHASE, END = "== ", "== how long it took"
_FACES = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def phases(log: str) -> list[list[str]]:
    """The lines of each phase, its name first. ValueError where the run did not come to its end."""
    lines = [Text.from_ansi(line).plain.rstrip() for line in log.splitlines()]
    found: list[list[str]] = []
    for line in lines:
        if line.startswith(PHASE):
            found.append([line])
        elif found:
            found[-1].append(line)
    if not any(phase[0] == END for phase in found):
        raise ValueError(f"has no line {END!r}: not the output of a `make demo` that passed")
    return found


def shown(phase: list[str]) -> Iterator[str]:
    """A phase without its middle, which is named by its length."""
    while phase[-1:] == [""]:
        phase = phase[:-1]
    left = len(phase) - FIRST - LAST
    if left < 2:
        yield from phase
    else:
        yield from (*phase[:FIRST], f"    … {left} lines …", *phase[-LAST:])
    yield ""


def draw(log: str) -> str:
    """The picture. It asks for no font from the network: the reader's own stands in."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text("$ make demo", style="bold"))
    for phase in phases(log):
        for line in shown(phase):
            style = "bold cyan" if line.startswith(PHASE) else ""
            console.print(Text(line, style=style), no_wrap=True, overflow="ellipsis")
    made = _FACES.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", "monospace")
    return console.export_svg(title="make demo", code_format=made, unique_id="demo")


def main() -> int:
    """Reads the log and writes the picture; the exit status."""
    try:
        (log,) = sys.argv[1:]
        drawn = draw(Path(log).read_text())
    except (OSError, ValueError) as error:
        print(f"demo: {' '.join(sys.argv[1:]) or 'no LOG named'}: {error}", file=sys.stderr)
        return 1
    (ROOT / DEMO).write_text(drawn)
    print(f"demo: {DEMO}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
