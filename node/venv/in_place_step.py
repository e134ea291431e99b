"""The step of an installation in place (the seed's way): pip changed the tree, a backup undoes it.

Nothing of the former tree was kept but the backup. Its undo unpacks that one beside, proves it and
trades places; what pip left is kept for the post-mortem. A file says which inode is the unpacked
one, so an undo that was killed anywhere is gone on with.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from typing import Any

from node.files import atomic, state_dir
from node.core import proc
from node.change import tree_step
from node.venv import writers
from node.core.errors import Json, NodeError
from node.change.work_folder_step import NEW, OLD

READY = "ready"
look = tree_step.look


def announced(path: str, work: str, backup: str, what: str) -> Json:
    """Gives the step's entry of the journal, announced; `work` is where an undo will unpack."""
    now = look(path)
    return {"op": "install", "path": path, "what": what, "backup": backup, "work": work,
            "state": "intent", "pre": now, "post": now}  # fmt: skip


def _backup(name: str) -> Any:
    # imported here: they import what imports the kinds of steps
    return importlib.import_module(f"node.backup.{name}")


def same(entry: Json, current: Json) -> bool:
    """It is ours, whatever pip made of it."""
    return True


def ready(entry: Json) -> None:
    """Raise NodeError before an undo touches anything: no backup, or no room for it."""
    if _traded(entry):
        return
    manifest = _backup("store").load(entry["backup"])
    above = os.path.dirname(entry["path"])
    room = 0 if look(entry["work"])["kind"] == "directory" else manifest["room_bytes"]
    _backup("create").check_room(above, room, manifest["members"]["count"])


def _inode(entry: Json) -> int | None:
    """Gives the inode of the unpacked and proven tree, None while there is none."""
    text = proc.read_text(os.path.join(entry["work"], READY))
    return int(text) if text.isdigit() else None


def _traded(entry: Json) -> bool:
    inode = _inode(entry)
    return inode is not None and look(entry["path"]).get("ino") == inode


def revert(entry: Json, overwrite: bool) -> str:
    """Bring the backup back to the path; gives what was done in words. Raises NodeError."""
    path, work = entry["path"], entry["work"]
    new, old = os.path.join(work, NEW), os.path.join(work, OLD)
    if not _traded(entry):
        if look(old)["kind"] != "absent":
            raise NodeError(f"{path} is not what an undo put there; what lay there is in {old}",
                            "later_edit", f"look at both; then remove {work}")  # fmt: skip
        writers.wait(path, writers.is_pip)
        if _inode(entry) is None or look(new).get("ino") != _inode(entry):
            _unpack(entry)
        trade = {"path": path, "source": new, "displaced": old, "pre": look(path)}
        tree_step.forward(trade)
    elif look(new)["kind"] != "absent" and look(old)["kind"] == "absent":
        tree_step.move(new, old)  # of an undo that was killed between two renames
    return f"backup {entry['backup']} is back; what lay there is kept in {old}"


def _unpack(entry: Json) -> None:
    """Fill the work folder anew, and note the inode once all of it is proven and on the disk."""
    work = entry["work"]
    with atomic.Folder(work):
        pass
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(work)
    new = os.path.join(work, NEW)
    for folder in (work, new):
        os.mkdir(folder, 0o700)
    backup = entry["backup"]
    _backup("unpack").unpack(backup, _backup("store").load(backup), new)
    atomic.save_private(os.path.join(work, READY), str(look(new)["ino"]).encode("ascii"))
    state_dir.sync_folder(os.path.dirname(work))


def settle(entry: Json) -> bool:
    """What pip did before it was cut off is not known: it stays announced, and undo takes it."""
    return False
