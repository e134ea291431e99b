"""The tree step of a change: a folder trades places with another, and undo trades back.

Nothing is removed: what lay at the path is kept under a name that the journal knows. Which one is
which is told by node/files/identity.py, so a step that a kill cut short can be finished or taken
back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from typing import Any

from node.change.path_kind import PathKind
from node.core import validate
from node.core.errors import Json, NodeError
from node.core.step_kind import Steps
from node.core.step_state import DONE, UNDONE, UNKNOWN
from node.files import atomic, identity

_NOREPLACE, _EXCHANGE = 1, 2
# what kernels and file systems say that do not know renameat2 or its flags
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


def inspect_tree(path: str) -> Json:
    """Gives what lies at a path, a link not followed: its kind and identity, or absent."""
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return dict(atomic.ABSENT)
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    return {"kind": kind, **identity.of(path, info)}


def _done_before(step: Json, row: Json, now: Json) -> bool:
    """Gives True when a record says that this very step is done, and it still is."""
    same = row["op"] == "tree" and all(row[key] == step[key] for key in ("path", "source"))
    return bool(same and row["state"] == DONE and now == row["post"])


def _rename(old: str, new: str, flags: int) -> None:
    """Rename through the folders' descriptors, and flush both. Raises OSError."""
    with atomic.Folder(old, links=False) as a, atomic.Folder(new, links=False) as b:
        call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), old)
        if call(a.fd, os.fsencode(a.name), b.fd, os.fsencode(b.name), flags) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), old)
        os.fsync(a.fd)
        os.fsync(b.fd)


def move(old: str, new: str) -> None:
    """Give an entry another name, which must be free."""
    try:
        _rename(old, new, _NOREPLACE)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        with atomic.Folder(old, links=False) as a, atomic.Folder(new, links=False) as b:
            if b.lstat() is not None:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
            os.rename(a.name, b.name, src_dir_fd=a.fd, dst_dir_fd=b.fd)
            os.fsync(a.fd)
            os.fsync(b.fd)


def _trade(path: str, other: str, spare: str) -> None:
    """Exchange two entries, in one step where the kernel can: else `spare` is used on the way."""
    try:
        _rename(path, other, _EXCHANGE)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        move(path, spare)
        move(other, path)
        move(spare, other)


def forward(entry: Json) -> None:
    """Put the new one in place."""
    path, source, displaced = entry["path"], entry["source"], entry["displaced"]
    if source is None:
        move(path, displaced)
    elif entry["pre"]["kind"] == "absent":
        move(source, path)
    else:
        # the old one lies at `source` for a moment, or (no exchange) at once where it is kept
        try:
            _rename(path, source, _EXCHANGE)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
            move(path, displaced)
            move(source, path)
            return
        move(source, displaced)


def _where(entry: Json, wanted: Json) -> str | None:
    """Gives which of the step's places holds an entry, or None."""
    if wanted["kind"] == "absent":
        return None
    places = (entry["path"], entry["displaced"], entry["source"])
    held = (place for place in places if place and inspect_tree(place) == wanted)
    return next(held, None)


def _backward(entry: Json) -> None:
    """Put the old one back, from wherever a kill or a person left the two."""
    path, source, displaced = entry["path"], entry["source"], entry["displaced"]
    old = _where(entry, entry["pre"])
    now = inspect_tree(path)
    if entry["pre"]["kind"] == "absent":
        if now["kind"] != "absent":
            move(path, source or displaced)
        return
    if old is None:
        raise _gone(entry)
    if old != path and now["kind"] == "absent":
        move(old, path)
    elif old != path:
        # of the two spare names one is free: each holds at most the one that was displaced
        free = source if old == displaced and source else displaced
        _trade(path, old, free if free != old else old + ".swap")
    spare = source and inspect_tree(source)["kind"] == "absent"
    if spare and inspect_tree(displaced)["kind"] != "absent":
        move(displaced, source)


def _gone(entry: Json) -> NodeError:
    """Gives the error for a kept tree that somebody removed."""
    return NodeError(f"{entry['displaced']}, which held what lay at {entry['path']}, is gone",
                     "tree_gone", "restore a backup: rignode tree list")  # fmt: skip


class TreeKind(PathKind):
    """A folder and the one that takes its place."""

    keys = ("path", "source", "displaced", "expect")
    required = ("path", "displaced")
    moves = True

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked.

        `source` None moves the path away and puts nothing there. `expect`: None, "absent",
        "present".
        """
        names = [validate.path(step[key], f"{where}.{key}") for key in ("path", "displaced")]
        source = step.get("source")
        if source is not None:
            names.append(validate.path(source, f"{where}.source"))
        if len(set(names)) != len(names):
            raise validate.bad(f"{where}: path, source and displaced are not different")
        for one in names:
            if any(other.startswith(one + "/") for other in names):
                raise validate.bad(f"{where}: {one} holds another one of its paths")
        expect = validate.choice(step.get("expect"), f"{where}.expect", (None, "absent", "present"))
        return {"op": "tree", "path": names[0], "displaced": names[1], "source": source,
                "expect": expect}  # fmt: skip

    def inspect(self, path: str) -> Json:
        """Gives the kind and identity of what lies at the path now."""
        return inspect_tree(path)

    def target(self, step: Json) -> Json:
        """Gives the description of the path when the step is done."""
        return inspect_tree(step["source"]) if step["source"] else dict(atomic.ABSENT)

    def changes(self, step: Json, current: Json) -> bool:
        """Gives whether the step changes something. Raises NodeError when it must not be done."""
        seen = "absent" if current["kind"] == "absent" else "present"
        if current["kind"] == "other":
            raise NodeError(f"{step['path']} is a device, a pipe or a socket", "not_a_file")
        if step["expect"] is not None and step["expect"] != seen:
            raise NodeError(f"{step['path']} is {seen}, which is not what the caller saw",
                            "changed_meanwhile", "look at it, then run again")  # fmt: skip
        return current["kind"] != "absent" or step["source"] is not None

    def do(self, step: Json, steps: Steps, **more: Any) -> tuple[bool, str]:
        """Trade the two. `more` is kept in the journal beside it."""
        path, source, displaced = step["path"], step["source"], step["displaced"]
        pre, post = inspect_tree(path), self.target(step)
        if source and post["kind"] == "absent":
            if any(_done_before(step, row, pre) for row in steps.rows):
                return False, "as wanted"
            raise NodeError(f"{source} is not there", "no_source", "unpack or install it first")
        if not self.changes(step, pre):
            return False, "as wanted"
        if pre["kind"] != "absent" and os.path.lexists(displaced):
            raise NodeError(f"{displaced} is there already: it would be lost", "not_free",
                            "remove it, or name another place")  # fmt: skip
        for place in filter(None, (path, source, displaced)):
            with atomic.Folder(place, links=False):
                pass  # before anything is announced: each folder must be there and safe
        entry = self.record(steps, path=path, source=source, displaced=displaced,
                            pre=pre, post=post, **more)  # fmt: skip
        forward(entry)
        steps.finish(entry)
        return True, "changed"

    def check_revertible(self, entry: Json) -> None:
        """Raise NodeError when the old one is nowhere."""
        if entry["pre"]["kind"] != "absent" and _where(entry, entry["pre"]) is None:
            raise _gone(entry)

    def is_ours(self, entry: Json, current: Json) -> bool:
        """Gives True when the path holds the old one, the new one, or (cut short) nothing."""
        return super().is_ours(entry, current) or current["kind"] == "absent"

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Trade back; what lies there now is kept."""
        current = inspect_tree(entry["path"])
        if not self.is_ours(entry, current) and not overwrite:
            raise NodeError(f"{entry['path']} was replaced after the change", "later_edit")
        if self.same(current, entry["pre"]):
            # an undo that was killed has still to give the new one its name
            with contextlib.suppress(NodeError):
                _backward(entry)
            return "was as before"
        _backward(entry)
        if self.verify(entry, "pre"):
            raise NodeError(f"{entry['path']} is not what it was", "undo_incomplete")
        kept = entry["source"] or entry["displaced"]
        there = os.path.lexists(kept)
        return f"put back; what lay there is kept in {kept}" if there else "put back"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Find out which one lies there, and finish or take back what was cut short."""
        now, pre = inspect_tree(entry["path"]), entry["pre"]
        if self.same(now, pre):
            return UNDONE
        if self.same(now, entry["post"]):
            source = entry["source"]
            if source and pre["kind"] != "absent" and self.same(inspect_tree(source), pre):
                move(source, entry["displaced"])
            return DONE
        if now["kind"] != "absent" or _where(entry, pre) is None:
            return UNKNOWN
        _backward(entry)
        return UNDONE
