"""apply: a change is opened, and its steps are recorded and done."""

from __future__ import annotations

import errno
import grp
import hashlib
import os
import pwd
import shlex
from collections.abc import Callable

from node import dropin
from node.change import journal, kinds, transaction
from node.change.journal import DONE
from node.change.kinds import PRE, Seen, Steps
from node.change.transaction import Transaction
from node.change.tree_step import PathKind
from node.core import errors, files, owner, validate
from node.core.errors import CannotRead, Json, NodeError, io_remedy
from node.core.owner import Owner

# The file, absent and directory steps of a change: one path, old or new in whole.

VALIDATE_TIMEOUT_S = 20.0
_KEYS = {
    "file": ("path", "content", "content_base64", "mode", "owner", "group", "expect_sha256",
             "validate", "sensitive", "for_unit", "accept_ghosts", "blob", "keep", "secrets",
             "quoted"),
    "absent": ("path", "expect_sha256", "for_unit", "accept_ghosts"),
    "directory": ("path", "mode", "owner", "group"),
}  # fmt: skip
_REQUIRED = {"file": ("path", "mode"), "absent": ("path",), "directory": ("path", "mode")}


def _owner(step: Json, where: str) -> files.Owner:
    """Gives mode, uid and gid of a step; owner and group are root unless it says otherwise."""
    user = validate.name(step.get("owner", "root"), f"{where}.owner")
    group = validate.name(step.get("group", "root"), f"{where}.group")
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise validate.bad(f"{where}.owner: no user {user!r} on this host") from None
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise validate.bad(f"{where}.group: no group {group!r} on this host") from None
    return files.Owner(validate.mode(step["mode"], f"{where}.mode"), uid, gid)


def _kept(step: Json, where: str) -> bytes:
    """Gives the bytes of a kept copy that a step names by its sha256."""
    digest = validate.expected_sha256(step["blob"], f"{where}.blob")
    if digest in (None, "absent") or "content" in step or "content_base64" in step:
        raise validate.bad(f"{where}: give 'blob', a sha256, or content, one of them")
    return files.load_blob(str(digest))


def _raw(step: Json, where: str) -> bytes:
    """Gives the bytes of a file step: of its content, of a kept copy, or rendered of secrets."""
    if "blob" in step:
        return _kept(step, where)
    if "secrets" not in step:
        return validate.content(step, where)
    if "content" in step or "content_base64" in step or step["mode"] != "0600":
        raise validate.bad(f"{where}: 'secrets' go without content, into a file of mode 0600")
    quoted = validate.boolean(step.get("quoted", False), f"{where}.quoted")
    rows = owner.parse_secrets(step["secrets"], f"{where}.secrets")
    return owner.render_secrets(step["path"], rows, quoted)


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


def _check(step: Json, folder: files.Folder, current: Json) -> Callable[[str], None]:
    """Gives the function that runs the step's validator, which may take its time, and then looks
    at the path again: what somebody wrote there meanwhile is kept nowhere.
    """

    def check(temp: str) -> None:
        if step["validate"]:
            _validator(step)(temp)
        if files.read_entry(folder) != current:
            raise NodeError(
                f"{step['path']} was edited while it was checked: the edit is kept",
                "changed_meanwhile",
                "look at the file, then run again",
            )

    return check


def _set_directory(
    folder: files.Folder, owner: files.Owner, make: bool, xattrs: dict[str, str] | None = None
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
            files.write_attributes(fd, xattrs)
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
    a, b = ({**side, "xattrs": files.judged_attributes(side.get("xattrs") or {})}
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
        out: Json = {"op": self.op, "path": validate.path(step["path"], f"{where}.path")}
        out["expect_sha256"] = validate.expected_sha256(
            step.get("expect_sha256"), f"{where}.expect_sha256"
        )
        if self.op != "directory" and step.get("for_unit") is not None:
            out["for_unit"] = validate.unit(step["for_unit"], f"{where}.for_unit")
            accepted = step.get("accept_ghosts", False)
            out["accept_ghosts"] = validate.boolean(accepted, f"{where}.accept_ghosts")
        if self.op != "absent":
            out["owner"] = _owner(step, where)
        if self.op == "file":
            out["raw"] = _raw(step, where)
            out["keep"] = validate.boolean(step.get("keep", False), f"{where}.keep")
            wanted = step.get("validate")
            out["validate"] = None if wanted is None else validate.argv(wanted, f"{where}.validate")
            sensitive = step.get("sensitive", "secrets" in step)
            out["sensitive"] = validate.boolean(sensitive, f"{where}.sensitive")
        return out

    def inspect(self, path: str) -> Json:
        """Gives what lies at a path now; a path whose folder is gone is absent."""
        return _current(path)

    def target(self, step: Json) -> Json:
        """Gives the description (atomic.read_entry) of the path when the step is done."""
        if self.op == "absent":
            return dict(files.ABSENT)
        mode, uid, gid = step["owner"]
        owner = {"mode": f"{mode:04o}", "uid": uid, "gid": gid}
        if self.op == "directory":
            return {"kind": "directory", **owner}
        return {"kind": "file", "sha256": hashlib.sha256(step["raw"]).hexdigest(), **owner}

    def first_seen(self, step: Json, seen: Seen) -> Json:
        """Gives what lies there. Raises NodeError when it is not what the caller saw."""
        path = step["path"]
        if os.path.dirname(path) in seen.made:
            current = dict(files.ABSENT)
        else:
            with files.Folder(path) as folder:
                current = files.read_entry(folder)
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
        with files.Folder(step["path"]) as folder:
            kept: list[bytes] = []
            current = files.read_entry(folder, kept.append)
            wanted = self.target(step)
            if current == wanted:
                return False, "as wanted"
            if kept:
                files.save_blob(kept[0])
            if step.get("keep"):
                files.save_blob(step["raw"])
            # the temp's name first, so that whoever comes after a kill can remove it; undo uses it
            temp = files.temp_name(folder.name)
            more = {}
            if current["kind"] != "absent":
                more["xattrs"] = files.attributes_of(folder.name, folder.fd)
            entry = self.record(steps, path=step["path"], pre=current, post=wanted, temp=temp,
                                **more)  # fmt: skip
            if self.op == "file":
                files.replace(folder, step["raw"], step["owner"], temp,
                               _check(step, folder, current))  # fmt: skip
            elif self.op == "absent":
                folder.unlink(folder.name)
            else:
                _set_directory(folder, step["owner"], current["kind"] == "absent")
            if self.op != "absent":
                wanted["xattrs"] = files.attributes_of(folder.name, folder.fd)
            steps.finish(entry)
            return True, "changed"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """A file is old or new in whole, so what lies there says which. The temp is removed."""
        with files.Folder(entry["path"]) as folder:
            folder.unlink(entry["temp"])
            return self.state_of(entry, files.read_entry(folder))

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
        if (
            "xattrs" in post
            and not files.judged_attributes(current.get("xattrs") or {}).items() <= known
        ):
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
            files.load_blob(pre["sha256"])
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
            with files.Folder(entry["path"]) as folder:
                folder.unlink(entry["temp"])  # of an undo that was killed
        if _same(current, entry["pre"]) and not self.verify(entry, PRE):
            return "was as before"
        if not self.is_ours(entry, current):
            if not overwrite:
                raise NodeError(f"{entry['path']} was edited after the change", "later_edit")
            if kept:
                entry["overwrote"] = files.save_blob(kept[0])
        with files.Folder(entry["path"]) as folder:
            return self._put_back(folder, entry, current)

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives in what the path is not as recorded: bytes, mode, owner, attributes."""
        known = (entry if side == PRE else entry[side]).get("xattrs")
        plain = {key: value for key, value in entry[side].items() if key != "xattrs"}
        lines = super().verify({**entry, side: plain}, side)
        if lines or known is None:
            return lines
        path = entry["path"]
        with files.Folder(path) as folder:
            return files.differing_attributes(
                path, files.attributes_of(folder.name, folder.fd), known
            )

    def _put_back(self, folder: files.Folder, entry: Json, current: Json) -> str:
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
        owner = files.Owner(int(pre["mode"], 8), pre["uid"], pre["gid"])
        if pre["kind"] == "directory":
            _set_directory(folder, owner, current["kind"] == "absent", xattrs)
        else:
            raw = files.load_blob(pre["sha256"])
            files.replace(folder, raw, owner, entry["temp"], xattrs=xattrs)
        return "restored"


def _current(path: str, keep: Callable[[bytes], None] | None = None) -> Json:
    """Gives what lies at a path now, with its attributes; a path whose folder is gone is absent."""
    try:
        with files.Folder(path) as folder:
            found = files.read_entry(folder, keep)
            if found["kind"] != "absent":
                found["xattrs"] = files.attributes_of(folder.name, folder.fd)
            return found
    except NodeError as error:
        if error.code == "no_folder":
            return dict(files.ABSENT)
        raise


MAX_STEPS = 200


def parse_request(request: Json) -> Json:
    """Gives an apply request with every value checked."""
    body = validate.keys(request, "request", ("change", "steps", "dry"), ("change", "steps"))
    rows = validate.array(body["steps"], "steps", MAX_STEPS)
    return {
        "change": journal.parse_change(body["change"]),
        "steps": [kinds.parse(row, f"steps[{n}]") for n, row in enumerate(rows)],
        "dry": validate.boolean(body.get("dry", False), "dry"),
    }


def _answer(step: Json, changed: bool, detail: str, told: Json) -> Json:
    """Gives what became of one step."""
    about: Json = {key: step[key] for key in ("unit", "path") if key in step}
    return {"op": step["op"], **about, "changed": changed, "detail": detail, **told}


def _plan_ahead(wanted: list[Json]) -> list[tuple[bool, str] | None]:
    """Gives what each step would do that can be planned before the first is done, else None.

    The drop-ins that change are checked as one. Raises NodeError for the first step that must not
    be done.
    """
    seen = Seen()
    plans = [kinds.of(step).plan(step, seen) if kinds.of(step).plans_ahead else None
             for step in wanted]  # fmt: skip
    dropin.require_sound([step for step, plan in zip(wanted, plans, strict=True)
                         if plan and plan[0]])  # fmt: skip
    return plans


def _dry(wanted: list[Json]) -> list[Json]:
    """Gives what each step would do; reads only."""
    answers: list[Json] = []
    seen = Seen()
    for step, plan in zip(wanted, _plan_ahead(wanted), strict=True):
        changed, detail = plan or kinds.of(step).plan(step, seen)
        seen.changed_before = seen.changed_before or changed
        answers.append(_answer(step, changed, detail if changed else "as wanted", {}))
    return answers


def apply(request: Json) -> Json:
    """Do the steps of a change that are not yet so; gives what each did. None: it is only opened.

    When a step on a path fails before any unit was touched, the steps of this call are taken
    back, so nothing has changed. A failing unit step leaves the change OPEN.
    """
    body = parse_request(request)
    if body["dry"]:
        answers = _dry(body["steps"])
        changed = any(row["changed"] for row in answers)
        return {"change": body["change"]["id"], "status": None, "changed": changed,
                "steps": answers}  # fmt: skip
    with transaction.opened(body["change"], "apply") as steps:
        _plan_ahead(body["steps"])
        if not body["steps"]:
            steps.announce()
        try:
            answers = _do_all(steps, body["steps"])
        except (NodeError, CannotRead, OSError) as error:
            raise steps.take_back(error) from error
    return {
        **steps.answer(),
        "changed": any(row["changed"] for row in answers),
        "steps": answers,
    }


def _do_all(steps: Transaction, wanted: list[Json]) -> list[Json]:
    """Do the steps in order; gives what each did. Stops between two steps on a signal."""
    answers: list[Json] = []
    for step in wanted:
        if errors.interrupted():
            raise NodeError(
                f"ended by {errors.interrupted()} after {len(answers)} of {len(wanted)} steps",
                "interrupted",
                "run it again, or: rignode undo",
            )
        kind = kinds.of(step)
        try:
            changed, detail = kind.do(step, steps)
        except OSError as error:
            raise NodeError(kinds.failed(step, error), "io", io_remedy(error)) from error
        steps.changed_before = steps.changed_before or changed
        told = {key: steps.rows[-1][key] for key in kind.told if changed and key in steps.rows[-1]}
        answers.append(_answer(step, changed, detail, told))
    return answers
