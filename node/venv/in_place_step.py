"""The step of an installation in place (the seed's way): pip changed the tree, a backup undoes it.

Nothing of the former tree was kept but the backup. Its undo unpacks that one beside, proves it and
trades places; what pip left is kept for the post-mortem. A file says which folder is the unpacked
one, so an undo that was killed anywhere is gone on with.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil

from node.backup import compare, create, store, unpack
from node.change import tree_step
from node.change.path_kind import PathKind
from node.change.tree_step import inspect_tree
from node.change.work_folder_step import NEW, OLD
from node.core import proc
from node.core.errors import Json, NodeError
from node.files import atomic, dirfd, identity, state_dir
from node.venv import writers

READY = "ready"


def _is_ready(entry: Json, path: str) -> bool:
    """Gives True when the unpacked and proven tree lies at a path."""
    text = proc.read_text(os.path.join(entry["work"], READY))
    if not text:
        return False
    # an older program wrote the inode alone
    ready = {"ino": int(text)} if text.isdigit() else json.loads(text)
    return identity.same(inspect_tree(path), ready)


def _traded(entry: Json) -> bool:
    return _is_ready(entry, entry["path"])


def _unpack(entry: Json) -> None:
    """Fill the work folder anew, and note which one once all of it is proven and on the disk."""
    work = entry["work"]
    with atomic.Folder(work):
        pass
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(work)
    new = os.path.join(work, NEW)
    os.mkdir(work, 0o700)
    with dirfd.private(work) as fd:  # its place may be in a folder of somebody else
        os.mkdir(NEW, 0o700, dir_fd=fd)
    backup = entry["backup"]
    unpack.unpack(backup, store.load(backup), new)
    ready = json.dumps(inspect_tree(new)).encode("ascii")
    atomic.save_private(os.path.join(work, READY), ready)
    state_dir.sync_folder(os.path.dirname(work))


class InPlaceKind(PathKind):
    """An installation by pip into a tree that is in use; `post` is not known while pip runs."""

    moves = True
    # pip may have left anything: an undo brings the backup back
    taken_back = False

    def announced(self, path: str, work: str, backup: str, what: str) -> Json:
        """Gives the entry, not yet written; `work` is where an undo will unpack."""
        now = inspect_tree(path)
        return {"op": self.op, "path": path, "what": what, "backup": backup, "work": work,
                "pre": now, "post": now}  # fmt: skip

    def describe(self, entry: Json) -> str:
        """Names what was installed and the backup that undoes it."""
        return f"install {entry['what']} in {entry['path']}, undone by backup {entry['backup']}"

    def inspect(self, path: str) -> Json:
        """Gives the kind and identity of what lies at the path now."""
        return inspect_tree(path)

    def is_ours(self, entry: Json, current: Json) -> bool:
        """It is ours, whatever pip made of it."""
        return True

    def check_revertible(self, entry: Json) -> None:
        """Raise NodeError when there is no backup, or no room for it."""
        if _traded(entry):
            return
        manifest = store.load(entry["backup"])
        above = os.path.dirname(entry["path"])
        unpacked = inspect_tree(entry["work"])["kind"] == "directory"
        room = 0 if unpacked else manifest["room_bytes"]
        create.check_room(above, room, manifest["members"]["count"])

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Bring the backup back to the path. Raises NodeError."""
        path, work = entry["path"], entry["work"]
        new, old = os.path.join(work, NEW), os.path.join(work, OLD)
        if not _traded(entry):
            if inspect_tree(old)["kind"] != "absent":
                raise NodeError(f"{path} is not what an undo put there; what lay there is in {old}",
                                "later_edit", f"look at both; then remove {work}")  # fmt: skip
            writers.wait(path, writers.is_pip)
            if not _is_ready(entry, new):
                _unpack(entry)
            trade = {"path": path, "source": new, "displaced": old, "pre": inspect_tree(path)}
            tree_step.forward(trade)
        elif inspect_tree(new)["kind"] != "absent" and inspect_tree(old)["kind"] == "absent":
            tree_step.move(new, old)  # of an undo that was killed between two renames
        return f"backup {entry['backup']} is back; what lay there is kept in {old}"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives in what the tree is not as the backup; what pip was to make of it is not known."""
        if side == "post":
            return []
        manifest = store.load(entry["backup"])
        # what an engine that runs writes into __pycache__ is none
        different = compare.first_difference(entry["backup"], manifest, entry["path"],
                                             bytecode=False)  # fmt: skip
        return [f"{entry['path']}: {different}"] if different else []
