"""docs/benchmarks.md: a section a part, so that one part can be measured again by itself."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.report import Row

TITLE = "# Benchmarks\n"
_CPU = re.compile(r"^model name\s*: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """A measured part: its heading, its text with the table in it, its rows."""

    title: str
    text: str
    rows: Sequence[Row]

    @property
    def missed(self) -> list[str]:
        """The targets that are not met."""
        return [row.what for row in self.rows if row.met is False]


def machine() -> str:
    """This machine, as the reader of the figures needs it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    found = _CPU.search(Path("/proc/cpuinfo").read_text())
    cpu = f" ({found[1].strip()})" if found else ""
    # Other work on those cores stretches what runs next to it; the reader has to know.
    load = f"load average {os.getloadavg()[0]:.1f} before"
    return f"a VM of {os.cpu_count()} cores{cpu} and {memory:.0f} GiB, {load}"


def today() -> str:
    """The date of the figures."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def write(path: Path, part: Part) -> None:
    """Puts a part's section into the page, in place of the one that it had."""
    text = path.read_text() if path.exists() else TITLE
    before, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    new = f"{part.title}\n\n{part.text.strip()}\n\n"
    kept = [new if one.startswith(f"{part.title}\n") else one for one in sections]
    kept += [] if new in kept else [new]
    whole = before.strip() + "\n\n" + "".join(f"## {one.strip()}\n\n" for one in kept)
    path.write_text(whole.rstrip() + "\n")
