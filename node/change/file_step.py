"""The file, absent and directory steps of a change: one path, old or new in whole."""

from __future__ import annotations

import errno
import grp
import hashlib
import os
import pwd
import shlex
from collections.abc import Callable

from node.change.path_kind import PathKind
from node.core import validate as core_validate
from node.core.errors import Json, NodeError
from node.core.run_as_owner import Owner
from node.core.step_kind import PRE, Seen, Steps
from node.core.step_state import DONE
from node.files import atomic, attributes, secret_env

VALIDATE_TIMEOUT_S = 20.0
_KEYS = {
    "file": ("path", "content", "content_base64", "mode", "owner", "group", "expect_sha256",
             "validate", "sensitive", "for_unit", "accept_ghosts", "blob", "keep", "secrets",
             "quoted"),
    "absent": ("path", "expect_sha256", "for_unit", "accept_ghosts"),
    "directory": ("path", "mode", "owner", "group"),
}  # fmt: skip
_REQUIRED = {"file": ("path", "mode"), "absent": ("path",), "directory": ("path", "mode")}


def _owner(step: Json, where: str) -> atomic.Owner:
    """Gives mode, uid and gid of a step; owner and group are root unless it says otherwise."""
    user = core_validate.name(step.get("owner", "root"), f"{where}.owner")
    group = core_validate.name(step.get("group", "root"), f"{where}.group")
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise core_validate.bad(f"{where}.owner: no user {user!r} on this host") from None
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise core_validate.bad(f"{where}.group: no group {group!r} on this host") from None
    return atomic.Owner(core_validate.mode(step["mode"], f"{where}.mode"), uid, gid)


def _kept(step: Json, where: str) -> bytes:
    """Gives the bytes of a kept copy that a step names by its sha256."""
    digest = core_validate.expected_sha256(step["blob"], f"{where}.blob")
    if digest in (None, "absent") or "content" in step or "content_base64" in step:
        raise core_validate.bad(f"{where}: give 'blob', a sha256, or content, one of them")
    return atomic.load_blob(str(digest))


def _raw(step: Json, where: str) -> bytes:
    """Gives the bytes of a file step: of its content, of a kept copy, or rendered of secrets."""
    if "blob" in step:
        return _kept(step, where)
    if "secrets" not in step:
        return core_validate.content(step, where)
    if "content" in step or "content_base64" in step or step["mode"] != "0600":
        raise core_validate.bad(f"{where}: 'secrets' go without content, into a file of mode 0600")
    quoted = core_validate.boolean(step.get("quoted", False), f"{where}.quoted")
    rows = secret_env.parse(step["secrets"], f"{where}.secrets")
    return secret_env.render(step["path"], rows, quoted)


def _validator(step: Json) -> Callable[[str], None]:
    """Gives the function that runs a step's validator on the temp file's path."""

    def validate(temp: str) -> None:
        argv = [word.replace("{tmp}", temp) for word in step["validate"]]
        try:
            # a venv's own Python compiles a patched file, and it is its owner's
            done = Owner(os.path.dirname(temp)).run(argv, VALIDATE_TIMEOUT_S, {})
        except NodeError as error:
            raise NodeError(
                f"{step['path']}: cannot run the validator: {error}", "not_valid", error.remedy
            ) from None
        if done.rc != 0:
            # a validator quotes the line it dislikes, which may be the secret
            said = "(output hidden)" if step["sensitive"] else done.last_line()
            for name in (temp, os.path.basename(temp)):
                said = said.replace(name, os.path.basename(step["path"]))
            raise NodeError(f"{step['path']}: {argv[0]} refuses it: {said[:400]}", "not_valid")

    return validate


def _check(step: Json, folder: atomic.Folder, current: Json) -> Callable[[str], None]:
    """Gives the function that runs the step's validator, which may take its time, and then looks
    at the path again: what somebody wrote there meanwhile is kept nowhere.
    """

    def check(temp: str) -> None:
        if step["validate"]:
            _validator(step)(temp)
        if atomic.read_entry(folder) != current:
            raise NodeError(
                f"{step['path']} was edited while it was checked: the edit is kept",
                "changed_meanwhile",
                "look at the file, then run again",
            )

    return check


def _set_directory(
    folder: atomic.Folder, owner: atomic.Owner, make: bool, xattrs: dict[str, str] | None = None
) -> None:
    """Make the folder's entry a directory with this owner and mode, and flush it."""
    if make:
        os.mkdir(folder.name, 0o700, dir_fd=folder.fd)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(folder.name, flags, dir_fd=folder.fd)
    try:
        os.fchown(fd, owner.uid, owner.gid)
        os.fchmod(fd, owner.mode)
        if xattrs is not None:
            attributes.write(fd, xattrs)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.fsync(folder.fd)


def _as_it_was(entry: Json) -> bool:
    """Gives whether the path is what the step found there."""
    try:
        return _same(_current(entry["path"]), entry["pre"])
    except NodeError:
        return False


def _same(current: Json, recorded: Json) -> bool:
    """Gives True where what lies there is what was recorded; of attributes only where both know."""
    known = {*current, *recorded} - ({"xattrs"} - (current.keys() & recorded.keys()))
    a, b = ({**side, "xattrs": attributes.judged(side.get("xattrs") or {})}
            for side in (current, recorded))  # fmt: skip
    return all(a.get(key) == b.get(key) for key in known)


class FileKind(PathKind):
    """The three kinds differ in what is to lie at the path: bytes, nothing, or a folder."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.keys = _KEYS[op]
        self.required = _REQUIRED[op]

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked and decoded. Raises NodeError (bad_request)."""
        out: Json = {"op": self.op, "path": core_validate.path(step["path"], f"{where}.path")}
        out["expect_sha256"] = core_validate.expected_sha256(
            step.get("expect_sha256"), f"{where}.expect_sha256"
        )
        if self.op != "directory" and step.get("for_unit") is not None:
            out["for_unit"] = core_validate.unit(step["for_unit"], f"{where}.for_unit")
            accepted = step.get("accept_ghosts", False)
            out["accept_ghosts"] = core_validate.boolean(accepted, f"{where}.accept_ghosts")
        if self.op != "absent":
            out["owner"] = _owner(step, where)
        if self.op == "file":
            out["raw"] = _raw(step, where)
            out["keep"] = core_validate.boolean(step.get("keep", False), f"{where}.keep")
            wanted = step.get("validate")
            out["validate"] = (
                None if wanted is None else core_validate.argv(wanted, f"{where}.validate")
            )
            sensitive = step.get("sensitive", "secrets" in step)
            out["sensitive"] = core_validate.boolean(sensitive, f"{where}.sensitive")
        return out

    def inspect(self, path: str) -> Json:
        """Gives what lies at a path now; a path whose folder is gone is absent."""
        return _current(path)

    def target(self, step: Json) -> Json:
        """Gives the description (atomic.read_entry) of the path when the step is done."""
        if self.op == "absent":
            return dict(atomic.ABSENT)
        mode, uid, gid = step["owner"]
        owner = {"mode": f"{mode:04o}", "uid": uid, "gid": gid}
        if self.op == "directory":
            return {"kind": "directory", **owner}
        return {"kind": "file", "sha256": hashlib.sha256(step["raw"]).hexdigest(), **owner}

    def first_seen(self, step: Json, seen: Seen) -> Json:
        """Gives what lies there. Raises NodeError when it is not what the caller saw."""
        path = step["path"]
        if os.path.dirname(path) in seen.made:
            current = dict(atomic.ABSENT)
        else:
            with atomic.Folder(path) as folder:
                current = atomic.read_entry(folder)
        if current["kind"] not in ("absent", "directory" if self.op == "directory" else "file"):
            raise NodeError(f"{path} is a {current['kind']}: it is not touched", "not_a_file")
        expected = step["expect_sha256"]
        if expected is not None and expected != current.get("sha256", "absent"):
            raise NodeError(
                f"{path} is not what the caller saw: it was edited meanwhile",
                "changed_meanwhile",
                "look at the file, then run again",
            )
        return current

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something after those before it."""
        path = step["path"]
        if path not in seen.now:
            seen.now[path] = self.first_seen(step, seen)
        if self.op == "directory" and seen.now[path]["kind"] == "absent":
            seen.made.add(path)
        return super().plan(step, seen)

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Do it: the pre-image is on the disk before, the path is flushed after."""
        with atomic.Folder(step["path"]) as folder:
            kept: list[bytes] = []
            current = atomic.read_entry(folder, kept.append)
            wanted = self.target(step)
            if current == wanted:
                return False, "as wanted"
            if kept:
                atomic.save_blob(kept[0])
            if step.get("keep"):
                atomic.save_blob(step["raw"])
            # the temp's name first, so that whoever comes after a kill can remove it; undo uses it
            temp = atomic.temp_name(folder.name)
            more = {}
            if current["kind"] != "absent":
                more["xattrs"] = attributes.of(folder.name, folder.fd)
            entry = self.record(steps, path=step["path"], pre=current, post=wanted, temp=temp,
                                **more)  # fmt: skip
            if self.op == "file":
                atomic.replace(folder, step["raw"], step["owner"], temp,
                               _check(step, folder, current))  # fmt: skip
            elif self.op == "absent":
                folder.unlink(folder.name)
            else:
                _set_directory(folder, step["owner"], current["kind"] == "absent")
            if self.op != "absent":
                wanted["xattrs"] = attributes.of(folder.name, folder.fd)
            steps.finish(entry)
            return True, "changed"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """A file is old or new in whole, so what lies there says which. The temp is removed."""
        with atomic.Folder(entry["path"]) as folder:
            folder.unlink(entry["temp"])
            return self.state_of(entry, atomic.read_entry(folder))

    def same(self, current: Json, recorded: Json) -> bool:
        """Gives True when the description of what lies there is the recorded one."""
        return _same(current, recorded)

    def is_ours(self, entry: Json, current: Json) -> bool:
        """Gives True when the path is as the step found it or left it."""
        pre, post = entry["pre"], entry["post"]
        if _same(current, post):
            return True
        cut_short = self.op == "directory" and current["kind"] == "directory"
        if cut_short and pre["kind"] == "absent" and entry["state"] != DONE:
            return True  # a kill between mkdir and chmod
        if _same({**current, "xattrs": post.get("xattrs")}, post):
            return False  # the attributes alone are not as it left them
        known = {*entry.get("xattrs", {}).items(), *post.get("xattrs", {}).items()}
        if "xattrs" in post and not attributes.judged(current.get("xattrs") or {}).items() <= known:
            return False  # what an undo could not give back is no edit; a new one is
        if cut_short and pre["kind"] == "directory":
            # a kill between chown and chmod: each of them is of one side
            return all(current[key] in (pre[key], post[key]) for key in ("mode", "uid", "gid"))
        return _same(current, pre)

    def check_revertible(self, entry: Json) -> None:
        """Raise NodeError when the kept copy that the path needs is gone or damaged."""
        pre = entry["pre"]
        if pre["kind"] != "file":
            return
        try:
            atomic.load_blob(pre["sha256"])
        except NodeError as error:
            if _as_it_was(entry):
                return
            path = shlex.quote(entry["path"])
            remedy = f"{error.remedy}; for all else: rignode undo --overwrite {path}"
            text = f"{entry['path']} cannot be put back: {error}; nothing was undone"
            raise NodeError(text, error.code, remedy) from None

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put the path back; a later edit that is overwritten is kept as a blob, named in it."""
        kept: list[bytes] = []
        current = _current(entry["path"], kept.append)
        if os.path.isdir(os.path.dirname(entry["path"])):
            with atomic.Folder(entry["path"]) as folder:
                folder.unlink(entry["temp"])  # of an undo that was killed
        if _same(current, entry["pre"]) and not self.verify(entry, PRE):
            return "was as before"
        if not self.is_ours(entry, current):
            if not overwrite:
                raise NodeError(f"{entry['path']} was edited after the change", "later_edit")
            if kept:
                entry["overwrote"] = atomic.save_blob(kept[0])
        with atomic.Folder(entry["path"]) as folder:
            return self._put_back(folder, entry, current)

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives in what the path is not as recorded: bytes, mode, owner, attributes."""
        known = (entry if side == PRE else entry[side]).get("xattrs")
        plain = {key: value for key, value in entry[side].items() if key != "xattrs"}
        lines = super().verify({**entry, side: plain}, side)
        if lines or known is None:
            return lines
        path = entry["path"]
        with atomic.Folder(path) as folder:
            return attributes.differing(path, attributes.of(folder.name, folder.fd), known)

    def _put_back(self, folder: atomic.Folder, entry: Json, current: Json) -> str:
        """Make the path what the step found; gives what was done in words."""
        pre, xattrs = entry["pre"], entry.get("xattrs")
        if pre["kind"] == "absent" and current["kind"] == "directory":
            try:
                os.rmdir(folder.name, dir_fd=folder.fd)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return self.leave(entry, "kept: the folder is not empty")
            os.fsync(folder.fd)
            return "removed"
        if pre["kind"] == "absent":
            folder.unlink(folder.name)
            return "removed"
        owner = atomic.Owner(int(pre["mode"], 8), pre["uid"], pre["gid"])
        if pre["kind"] == "directory":
            _set_directory(folder, owner, current["kind"] == "absent", xattrs)
        else:
            raw = atomic.load_blob(pre["sha256"])
            atomic.replace(folder, raw, owner, entry["temp"], xattrs=xattrs)
        return "restored"


def _current(path: str, keep: Callable[[bytes], None] | None = None) -> Json:
    """Gives what lies at a path now, with its attributes; a path whose folder is gone is absent."""
    try:
        with atomic.Folder(path) as folder:
            found = atomic.read_entry(folder, keep)
            if found["kind"] != "absent":
                found["xattrs"] = attributes.of(folder.name, folder.fd)
            return found
    except NodeError as error:
        if error.code == "no_folder":
            return dict(atomic.ABSENT)
        raise
