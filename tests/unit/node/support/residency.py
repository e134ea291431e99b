"""What of a file is in the page cache now, as util-linux's fincore says; and how to empty it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def resident(*paths: Path) -> int:
    """The bytes of these files that are in the page cache."""
    argv = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, paths)]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return sum(int(word) for word in out.split())


def empty(*paths: Path) -> None:
    """Takes these files out of the page cache; fails where that does not work."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert resident(*paths) == 0
