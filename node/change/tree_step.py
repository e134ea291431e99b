"""The tree step of a change: a folder trades places with another, and undo trades back.

Nothing is removed: what lay at the path is kept under a name that the journal knows. Which one is
which is told by node/core/files.py, so a step that a kill cut short can be finished or taken
back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shlex
import shutil
import stat
from typing import Any

from node.change.journal import DONE, UNDONE, UNKNOWN
from node.change.kinds import PATH, POST, PRE, Kind, Seen, Steps
from node.core import dirfd, files, validate
from node.core.errors import Json, NodeError

# What the kinds have in common that are about one path of the host.

# what lies there is none of the kinds that a step makes
ODD = ("not_a_file", "too_large")


class PathKind(Kind):
    """A step about the entry `path`; `pre` and `post` are what `inspect` gives."""

    phase = PATH
    plans_ahead = True

    def inspect(self, path: str) -> Json:
        """Gives the description of what lies at the path now. Raises NodeError."""
        raise NotImplementedError(self.op)

    def target(self, step: Json) -> Json:
        """Gives the description of the path when the step is done."""
        raise NotImplementedError(self.op)

    def changes(self, step: Json, current: Json) -> bool:
        """Gives whether the step changes what lies there. Raises NodeError when it must not."""
        return current != self.target(step)

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something after those before it."""
        path = step["path"]
        if path not in seen.now:
            seen.now[path] = self.first_seen(step, seen)
        changed = self.changes(step, seen.now[path])
        seen.now[path] = self.target(step)
        return changed, "would change"

    def first_seen(self, step: Json, seen: Seen) -> Json:
        """Gives what lies at a path that no step before was about."""
        return self.inspect(step["path"])

    def same(self, current: Json, recorded: Json) -> bool:
        """Gives True when the description of what lies there is the recorded one."""
        return current == recorded

    def is_ours(self, entry: Json, current: Json) -> bool:
        """Gives True when the path is as the step found it or left it."""
        return any(self.same(current, entry[side]) for side in (PRE, POST))

    def check_revertible(self, entry: Json) -> None:
        """Raise NodeError when there is no way back, before an undo touches anything."""

    def conflicts(self, entry: Json, seen: Seen) -> bool:
        """Gives True for a path that somebody edited after the step."""
        path = entry["path"]
        if any(path.startswith(moved + "/") for moved in seen.moved):
            return False  # it lies in the other tree now; looked at when that one is back
        try:
            self.check_revertible(entry)
        except NodeError as error:
            # asked for: the others go back, and this one is named at the end
            if error.code != "blob_damaged" or path not in seen.overwrite:
                raise
        if self.moves:
            seen.moved.append(path)
        try:
            now = seen.now[path] if path in seen.now else self.inspect(path)
        except NodeError as error:
            if error.code not in ODD:
                raise
            # a link, a FIFO or a huge file by now: somebody put it there, and the others go back
            now = {"kind": "odd"}
        # a step that knew the attributes puts them back too
        beside = {"xattrs": entry["xattrs"]} if "xattrs" in entry else {}
        seen.now[path] = {**entry["pre"], **beside}
        return not self.is_ours(entry, now)

    def state_of(self, entry: Json, current: Json) -> str:
        """Gives the state that what lies there tells."""
        if self.same(current, entry[POST]):
            return DONE
        return UNDONE if self.same(current, entry[PRE]) else UNKNOWN

    def about(self, entry: Json) -> str:
        """Gives the path: steps of several kinds may be about it."""
        return str(entry["path"])

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the line in which the path differs from what was recorded of it."""
        path, wanted = entry["path"], entry[side]
        now = self.inspect(path)
        if self.same(now, wanted):
            return []
        if now["kind"] != wanted["kind"]:
            return [f"{path}: {now['kind']}, not {wanted['kind']}"]
        found = (f"{key} is {_short(now.get(key))}, not {_short(wanted[key])}"
                 for key in wanted if now.get(key) != wanted[key])  # fmt: skip
        return [f"{path}: {', '.join(found)}"]


def _short(value: object) -> str:
    return str(value)[: 60 if " " in str(value) else 12]


# The link step of a change: a symbolic link is replaced in one rename, and put back by undo.


def _target(value: Any, where: str) -> str:
    """Gives what a link points to: a path, absolute or from the link's own folder."""
    text = validate.text(value, where)
    if not text or text.startswith("-") or text == "absent" or os.path.normpath(text) != text:
        raise validate.bad(f"{where}: {text[:80]!r} is not the target of a link")
    return text


def _entry(folder: files.Folder) -> Json:
    """Gives the link's description. Raises NodeError for anything that is no link."""
    info = folder.lstat()
    if info is None:
        return dict(files.ABSENT)
    if not stat.S_ISLNK(info.st_mode):
        raise NodeError(f"{folder.path} is there and is no link: it is not touched", "not_a_link",
                        f"look at it with: ls -ld {shlex.quote(folder.path)}")  # fmt: skip
    target = os.readlink(folder.name, dir_fd=folder.fd)
    return {"kind": "link", "target": target, "uid": info.st_uid, "gid": info.st_gid}


def inspect_link(path: str) -> Json:
    """Gives what lies at the path; a path whose folder is gone is absent."""
    try:
        with files.Folder(path) as folder:
            return _entry(folder)
    except NodeError as error:
        if error.code == "no_folder":
            return dict(files.ABSENT)
        raise


def _replace(folder: files.Folder, wanted: Json, temp: str) -> None:
    """Put a link in place of the entry, in one step for every reader."""
    os.symlink(wanted["target"], temp, dir_fd=folder.fd)
    try:
        os.chown(temp, wanted["uid"], wanted["gid"], dir_fd=folder.fd, follow_symlinks=False)
        os.rename(temp, folder.name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
    except BaseException:
        folder.unlink(temp)
        raise
    os.fsync(folder.fd)


class LinkKind(PathKind):
    """A symbolic link with its target and owner; anything else at the path is refused."""

    keys = ("path", "target", "expect")
    required = ("path", "target")
    moves = True

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step checked; `expect` is None, "absent" or the target that was seen."""
        target = _target(step["target"], f"{where}.target")
        expect = step.get("expect")
        if expect not in (None, "absent"):
            expect = _target(expect, f"{where}.expect")
        path = validate.path(step["path"], f"{where}.path")
        return {"op": "link", "path": path, "target": target, "expect": expect}

    def inspect(self, path: str) -> Json:
        """Gives the link that lies at the path now, or absent."""
        return inspect_link(path)

    def target(self, step: Json) -> Json:
        """Gives the description of the path when the step is done."""
        owner = {"uid": os.geteuid(), "gid": os.getegid()}
        return {"kind": "link", "target": step["target"], **owner}

    def changes(self, step: Json, current: Json) -> bool:
        """Gives whether the step changes the link. Raises NodeError when it must not be done."""
        seen = current.get("target", "absent")
        if step["expect"] is not None and step["expect"] != seen:
            raise NodeError(f"{step['path']} is not what the caller saw: it is {seen}",
                            "changed_meanwhile", "look at the link, then run again")  # fmt: skip
        return bool(seen != step["target"])

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Point the link elsewhere, in one step for every reader."""
        with files.Folder(step["path"]) as folder:
            current = _entry(folder)
            if not self.changes(step, current):
                return False, "as wanted"
            temp, post = files.temp_name(folder.name), self.target(step)
            entry = self.record(steps, path=step["path"], pre=current, post=post, temp=temp)
            _replace(folder, post, temp)
            steps.finish(entry)
            return True, "changed"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """A link is old or new in whole. The temp is removed."""
        with files.Folder(entry["path"]) as folder:
            folder.unlink(entry["temp"])
            return self.state_of(entry, _entry(folder))

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put the link back to what the step found."""
        current = inspect_link(entry["path"])
        if not os.path.isdir(os.path.dirname(entry["path"])):
            return "was as before: its folder is gone"
        with files.Folder(entry["path"]) as folder:
            folder.unlink(entry["temp"])
            if current == entry["pre"]:
                return "was as before"
            if not self.is_ours(entry, current):
                if not overwrite:
                    raise NodeError(f"{entry['path']} was edited after the change", "later_edit")
                entry["overwrote"] = current.get("target", "absent")
            if entry["pre"]["kind"] == "absent":
                folder.unlink(folder.name)
                return "removed"
            _replace(folder, entry["pre"], entry["temp"])
        return f"points to {entry['pre']['target']} again"


_NOREPLACE, _EXCHANGE = 1, 2
# what kernels and file systems say that do not know renameat2 or its flags
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


def inspect_tree(path: str) -> Json:
    """Gives what lies at a path, a link not followed: its kind and identity, or absent."""
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return dict(files.ABSENT)
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    return {"kind": kind, **files.identity_of(path, info)}


def _done_before(step: Json, row: Json, now: Json) -> bool:
    """Gives True when a record says that this very step is done, and it still is."""
    same = row["op"] == "tree" and all(row[key] == step[key] for key in ("path", "source"))
    return bool(same and row["state"] == DONE and now == row["post"])


def _rename(old: str, new: str, flags: int) -> None:
    """Rename through the folders' descriptors, and flush both. Raises OSError."""
    with files.Folder(old, links=False) as a, files.Folder(new, links=False) as b:
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
        with files.Folder(old, links=False) as a, files.Folder(new, links=False) as b:
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
        return inspect_tree(step["source"]) if step["source"] else dict(files.ABSENT)

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
            with files.Folder(place, links=False):
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


# The folder in which a restore works, and in which what it displaced is kept afterwards.

NEW, OLD = "new", "old"


class WorkFolderKind(PathKind):
    """A folder of our own, 0700; `used` once a tree of it took the place of another."""

    moves = True

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Make the folder and its two parts."""
        path = step["path"]
        with files.Folder(path) as above:
            entry = self.record(steps, path=path, pre=dict(files.ABSENT), used=False)
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


def make_work_folder_step(path: str, steps: Steps) -> Json:
    """Make the folder as a step; gives its entry of the journal."""
    WorkFolderKind("work").do({"path": path}, steps)
    return steps.rows[-1]
