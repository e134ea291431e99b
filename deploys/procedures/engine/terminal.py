"""The strip of a rig in a terminal: a line a node, each layer with a sign, so that no colour is
needed to read it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

from gates.doctor.strip import State, Strip

SIGNS: dict[State, str] = {"ok": "✓", "warn": "!", "unknown": "?", "block": "✗"}
_COLOURS: dict[State, str] = {
    "ok": "green", "warn": "yellow", "unknown": "bright_black", "block": "bold red",
}  # fmt: skip


def show(strips: Mapping[str, Strip], to: TextIO | None = None) -> None:
    """Prints the strips; nothing where `to` (none: stdout) is no terminal."""
    out = to or sys.stdout
    if not out.isatty():
        return
    # 30 ms, which no run without a terminal pays
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(file=out)
    width = max((len(name) for name in strips), default=0)
    for name, strip in strips.items():
        line = Text(name.ljust(width))
        for layer, state in strip.items():
            line.append(" ")
            # a no-break space: a sign stays with its layer
            line.append(f"{SIGNS[state]}\u00a0{layer.name.lower()}", _COLOURS[state])
        console.print(Padding(line, (0, 0, 0, 4)))
    console.print(Text(f"    {SIGNS['ok']} nothing found  {SIGNS['warn']} warns  "
                       f"{SIGNS['unknown']} unknown  {SIGNS['block']} blocks", "dim"))  # fmt: skip
