"""The folder in which a restore works, and in which what it displaced is kept afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from node.change.tree_step import look
from node.core.errors import Json
from node.files import atomic, state_dir

NEW, OLD = "new", "old"


def make(path: str, records: list[Json], record: Callable[[], None]) -> Json:
    """Make the folder, 0700, journalled before; gives its entry of the journal."""
    with atomic.Folder(path):
        pass
    entry: Json = {"op": "work", "path": path, "state": "intent", "pre": dict(atomic.ABSENT),
                   "used": False}  # fmt: skip
    records.append(entry)
    record()
    for folder in (path, os.path.join(path, NEW), os.path.join(path, OLD)):
        os.mkdir(folder, 0o700)
    state_dir.sync_folder(os.path.dirname(path))
    entry["state"] = "done"
    record()
    return entry


def same(entry: Json, current: Json) -> bool:
    """It is ours, whatever is in it."""
    return True


def ready(entry: Json) -> None:
    """It can always be left or removed."""


def revert(entry: Json, overwrite: bool) -> str:
    """Remove the folder; once a tree of it was in use it is kept for the post-mortem."""
    path = entry["path"]
    if look(path)["kind"] != "directory":
        return "was as before"
    if entry["used"]:
        return "kept for the post-mortem, until: rignode tree prune '{\"displaced\": true}'"
    shutil.rmtree(path)
    return "removed"


def settle(entry: Json) -> bool:
    """Find out whether a kill came before the folder was made."""
    entry["state"] = "done" if os.path.isdir(entry["path"]) else "undone"
    return True
