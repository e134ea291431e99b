"""The folder in which a restore works, and in which what it displaced is kept afterwards."""

from __future__ import annotations

import os
import shutil

from node.change.path_kind import PathKind
from node.change.tree_step import inspect_tree
from node.core.errors import Json
from node.core.step_kind import Steps
from node.core.step_state import DONE, UNDONE
from node.files import atomic, dirfd

NEW, OLD = "new", "old"


class WorkFolderKind(PathKind):
    """A folder of our own, 0700; `used` once a tree of it took the place of another."""

    moves = True

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Make the folder and its two parts."""
        path = step["path"]
        with atomic.Folder(path) as above:
            entry = self.record(steps, path=path, pre=dict(atomic.ABSENT), used=False)
            os.mkdir(above.name, 0o700, dir_fd=above.fd)
            # the folder above may be somebody else's, who puts a link in its place
            with dirfd.private(path) as fd:
                for name in (NEW, OLD):
                    os.mkdir(name, 0o700, dir_fd=fd)
            os.fsync(above.fd)
        steps.finish(entry)
        return True, "made"

    def inspect(self, path: str) -> Json:
        """Gives the kind and identity of what lies at the path now."""
        return inspect_tree(path)

    def is_ours(self, entry: Json, current: Json) -> bool:
        """It is ours, whatever is in it."""
        return True

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Remove the folder; once a tree of it was in use it is kept for the post-mortem."""
        path = entry["path"]
        if inspect_tree(path)["kind"] != "directory":
            return "was as before"
        if entry["used"]:
            return "kept for the post-mortem, until: rignode tree prune '{\"displaced\": true}'"
        shutil.rmtree(path)
        return "removed"

    def discard(self, entry: Json) -> None:
        """Remove it also when it was used: what a trade displaced is back, nothing ran from it."""
        if inspect_tree(entry["path"])["kind"] == "directory":
            shutil.rmtree(entry["path"])

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Find out whether a kill came before the folder was made."""
        return DONE if os.path.isdir(entry["path"]) else UNDONE

    def verify(self, entry: Json, side: str) -> list[str]:
        """Whether it is there or not hurts nobody: nothing runs from it."""
        return []


def make(path: str, steps: Steps) -> Json:
    """Make the folder as a step; gives its entry of the journal."""
    WorkFolderKind("work").do({"path": path}, steps)
    return steps.rows[-1]
