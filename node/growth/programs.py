"""Versions of the program: one stays while a unit, a change, the console or a process needs it."""

from __future__ import annotations

import glob
import json
import os
import re
import time
from functools import partial

from node.core import proc, version
from node.growth import changes
from node.growth.item import Item, file_bytes

UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system")
# an installation that was cut off; a younger one may be under way
TEMP_S = 3600.0
_PATH = re.compile(rf"/[^\s\"'=]*/{version.NAME.pattern}")


def folder() -> str:
    """Gives where the versions lie: beside this one."""
    return os.path.dirname(version.own_path() or "") or version.LIBRARY


def named() -> dict[str, str]:
    """Gives each program's path that is named, with who names it: the console's link, units,
    changes that are not settled. Raises NodeError for a damaged journal."""
    texts = {version.LINK: os.path.realpath(version.LINK)}
    for where in UNIT_FOLDERS:
        for path in glob.glob(f"{where}/*.*") + glob.glob(f"{where}/*.d/*.conf"):
            if os.path.isfile(path):
                texts[path] = proc.read_text(path)
    for row in changes.known():
        if row["status"] in changes.UNSETTLED:
            texts[f"change {row['id']}"] = json.dumps(row)
    return {path: who for who, text in texts.items() for path in _PATH.findall(text)}


def _running() -> set[str]:
    """Gives the programs that processes run from: they read more of them as they go on."""
    return {word for pid in proc.pids() for word in proc.argv(pid)[:8]
            if version.NAME.fullmatch(os.path.basename(word))}  # fmt: skip


def programs() -> list[Item]:
    """Gives the versions, newest first, and what cut-off installations left."""
    own, by_name, running = version.own_path(), named(), _running()
    found: list[tuple[float, Item]] = []
    for path in glob.glob(os.path.join(folder(), "rignode-*")):
        try:
            changed = os.lstat(path).st_mtime
        except FileNotFoundError:
            continue
        needed, cut = "", path.endswith(".tmp")
        if path == own:
            needed = "this one"
        elif path in by_name:
            needed = f"{by_name[path]} names it"
        elif path in running:
            needed = "a process runs from it"
        elif cut and time.time() - changed < TEMP_S:
            needed = "it may be written now"
        found.append((changed, Item(path, file_bytes(path), partial(os.unlink, path), needed,
                                    over=cut)))  # fmt: skip
    return [item for _, item in sorted(found, key=lambda row: row[0], reverse=True)]
