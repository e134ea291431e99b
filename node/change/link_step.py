"""The link step of a change: a symbolic link is replaced in one rename, and put back by undo."""

from __future__ import annotations

import os
import shlex
import stat
from typing import Any

from node.change.path_kind import PathKind
from node.core import validate
from node.core.errors import Json, NodeError
from node.core.step_kind import Steps
from node.files import atomic


def _target(value: Any, where: str) -> str:
    """Gives what a link points to: a path, absolute or from the link's own folder."""
    text = validate.text(value, where)
    if not text or text.startswith("-") or text == "absent" or os.path.normpath(text) != text:
        raise validate.bad(f"{where}: {text[:80]!r} is not the target of a link")
    return text


def _entry(folder: atomic.Folder) -> Json:
    """Gives the link's description. Raises NodeError for anything that is no link."""
    info = folder.lstat()
    if info is None:
        return dict(atomic.ABSENT)
    if not stat.S_ISLNK(info.st_mode):
        raise NodeError(f"{folder.path} is there and is no link: it is not touched", "not_a_link",
                        f"look at it with: ls -ld {shlex.quote(folder.path)}")  # fmt: skip
    target = os.readlink(folder.name, dir_fd=folder.fd)
    return {"kind": "link", "target": target, "uid": info.st_uid, "gid": info.st_gid}


def inspect_link(path: str) -> Json:
    """Gives what lies at the path; a path whose folder is gone is absent."""
    try:
        with atomic.Folder(path) as folder:
            return _entry(folder)
    except NodeError as error:
        if error.code == "no_folder":
            return dict(atomic.ABSENT)
        raise


def _replace(folder: atomic.Folder, wanted: Json, temp: str) -> None:
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
        with atomic.Folder(step["path"]) as folder:
            current = _entry(folder)
            if not self.changes(step, current):
                return False, "as wanted"
            temp, post = atomic.temp_name(folder.name), self.target(step)
            entry = self.record(steps, path=step["path"], pre=current, post=post, temp=temp)
            _replace(folder, post, temp)
            steps.finish(entry)
            return True, "changed"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """A link is old or new in whole. The temp is removed."""
        with atomic.Folder(entry["path"]) as folder:
            folder.unlink(entry["temp"])
            return self.state_of(entry, _entry(folder))

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put the link back to what the step found."""
        current = inspect_link(entry["path"])
        if not os.path.isdir(os.path.dirname(entry["path"])):
            return "was as before: its folder is gone"
        with atomic.Folder(entry["path"]) as folder:
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
