"""Versions of the program: one stays while a unit, a change, the console or a process needs it."""

from __future__ import annotations

import glob
import os
import time
from functools import partial

from node.change import programs
from node.core import proc, version
from node.growth.item import Item, file_bytes

# an installation that was cut off; a younger one may be under way
TEMP_S = 3600.0


def folder() -> str:
    """Gives where the versions lie: beside this one."""
    return os.path.dirname(version.own_path() or "") or version.LIBRARY


def _running() -> set[str]:
    """Gives the programs that processes run from: they read more of them as they go on."""
    return {word for pid in proc.pids() for word in proc.argv(pid)[:8]
            if version.NAME.fullmatch(os.path.basename(word))}  # fmt: skip


def versions() -> list[Item]:
    """Gives the versions, newest first, and what cut-off installations left."""
    own, named, running = version.own_path(), programs.named(), _running()
    found: list[tuple[float, Item]] = []
    for path in glob.glob(os.path.join(folder(), "rignode-*")):
        try:
            changed = os.lstat(path).st_mtime
        except FileNotFoundError:
            continue
        needed, cut = "", path.endswith(".tmp")
        if path == own:
            needed = "this one"
        elif path in named:
            needed = f"{named[path][0]} names it"
        elif path in running:
            needed = "a process runs from it"
        elif cut and time.time() - changed < TEMP_S:
            needed = "it may be written now"
        found.append((changed, Item(path, file_bytes(path), partial(os.unlink, path), needed,
                                    over=cut)))  # fmt: skip
    return [item for _, item in sorted(found, key=lambda row: row[0], reverse=True)]
