"""The file, absent and directory steps of a change: check, plan, do."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import importlib
import os
import pwd
from collections.abc import Callable
from typing import Any

from node.change import kinds, stepkinds
from node.core import validate as core_validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import TimedOut, run
from node.files import atomic
from node.kube import deployment_step

VALIDATE_TIMEOUT_S = 20.0
_ALLOWED = {
    "file": ("path", "content", "content_base64", "mode", "owner", "group", "expect_sha256",
             "validate", "sensitive", "for_unit", "accept_ghosts", "blob", "keep"),
    "absent": ("path", "expect_sha256", "for_unit", "accept_ghosts"),
    "directory": ("path", "mode", "owner", "group"),
    "unit": ("unit", "enabled", "active", "daemon_reload"),
    "kube": deployment_step.KEYS,
    **{name: kind.ALLOWED for name, kind in stepkinds.ASKED.items()},
}  # fmt: skip
_REQUIRED = {"file": ("path", "mode"), "absent": ("path",), "directory": ("path", "mode"),
             "unit": ("unit",), "kube": deployment_step.REQUIRED,
             **{name: kind.REQUIRED for name, kind in stepkinds.ASKED.items()}}  # fmt: skip
Record = Callable[[], None]


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


def checked(value: Any, where: str) -> Json:
    """Gives a step with every value checked and decoded. Raises NodeError (bad_request)."""
    if not isinstance(value, dict):
        raise core_validate.bad(f"{where} is not an object")
    op = core_validate.choice(value.get("op"), f"{where}.op", (*_ALLOWED, *kinds.OPS))
    if op in kinds.OPS:
        return kinds.checked(core_validate.keys(value, where, ("op", *kinds.keys(op))), where)
    step = core_validate.keys(value, where, ("op", *_ALLOWED[op]), ("op", *_REQUIRED[op]))
    if op in stepkinds.ASKED:
        found: Json = stepkinds.ASKED[op].checked(step, where)
        return found
    if op == "kube":
        return deployment_step.checked(step, where)
    if op == "unit":
        return {
            "op": op,
            "unit": core_validate.unit(step["unit"], f"{where}.unit"),
            "enabled": core_validate.choice(
                step.get("enabled"), f"{where}.enabled", (True, False, None)
            ),
            "active": core_validate.choice(
                step.get("active"), f"{where}.active", ("start", "restart", "stop", None)
            ),
            "daemon_reload": core_validate.boolean(
                step.get("daemon_reload", False), f"{where}.daemon_reload"
            ),
        }
    out: Json = {"op": op, "path": core_validate.path(step["path"], f"{where}.path")}
    out["expect_sha256"] = core_validate.expected_sha256(
        step.get("expect_sha256"), f"{where}.expect_sha256"
    )
    if op != "directory" and step.get("for_unit") is not None:
        out["for_unit"] = core_validate.unit(step["for_unit"], f"{where}.for_unit")
        accepted = step.get("accept_ghosts", False)
        out["accept_ghosts"] = core_validate.boolean(accepted, f"{where}.accept_ghosts")
    if op != "absent":
        out["owner"] = _owner(step, where)
    if op == "file":
        out["raw"] = _kept(step, where) if "blob" in step else core_validate.content(step, where)
        out["keep"] = core_validate.boolean(step.get("keep", False), f"{where}.keep")
        wanted = step.get("validate")
        out["validate"] = (
            None if wanted is None else core_validate.argv(wanted, f"{where}.validate")
        )
        out["sensitive"] = core_validate.boolean(step.get("sensitive", False), f"{where}.sensitive")
    return out


def _kept(step: Json, where: str) -> bytes:
    """Gives the bytes of a kept copy that a step names by its sha256."""
    digest = core_validate.expected_sha256(step["blob"], f"{where}.blob")
    if digest in (None, "absent") or "content" in step or "content_base64" in step:
        raise core_validate.bad(f"{where}: give 'blob', a sha256, or content, one of them")
    return atomic.load_blob(str(digest))


def target(step: Json) -> Json:
    """Gives the description (atomic.read_entry) of the path when the step is done."""
    if step["op"] == "absent":
        return dict(atomic.ABSENT)
    mode, uid, gid = step["owner"]
    owner = {"mode": f"{mode:04o}", "uid": uid, "gid": gid}
    if step["op"] == "directory":
        return {"kind": "directory", **owner}
    return {"kind": "file", "sha256": hashlib.sha256(step["raw"]).hexdigest(), **owner}


def _refuse_unexpected(step: Json, current: Json) -> None:
    """Raise NodeError when the path is not of the step's kind or not what the caller saw."""
    if current["kind"] not in ("absent", "directory" if step["op"] == "directory" else "file"):
        raise NodeError(f"{step['path']} is a {current['kind']}: it is not touched", "not_a_file")
    expected = step["expect_sha256"]
    if expected is not None and expected != current.get("sha256", "absent"):
        raise NodeError(
            f"{step['path']} is not what the caller saw: it was edited meanwhile",
            "changed_meanwhile",
            "look at the file, then run again",
        )


def plan(steps: list[Json]) -> list[bool]:
    """Gives, for each path step, whether it would change something; others count as False.

    Raises NodeError for the first step that must not be done. Reads only.
    """
    made: set[str] = set()
    now: dict[str, Json] = {}
    changes: list[bool] = []
    for step in steps:
        if "path" not in step or step["op"] == "kube":
            changes.append(False)
            continue
        path = step["path"]
        kind = stepkinds.ASKED.get(step["op"])
        if kind:
            changes.append(kind.plan(step, now[path] if path in now else kind.look(path)))
            now[path] = kind.target(step)
            continue
        if path not in now:
            if os.path.dirname(path) in made:
                now[path] = dict(atomic.ABSENT)
            else:
                with atomic.Folder(path) as folder:
                    now[path] = atomic.read_entry(folder)
            _refuse_unexpected(step, now[path])
        if step["op"] == "directory" and now[path]["kind"] == "absent":
            made.add(path)
        changes.append(now[path] != target(step))
        now[path] = target(step)
    return changes


def _validator(step: Json) -> Callable[[str], None]:
    """Gives the function that runs a step's validator on the temp file's path."""

    def validate(temp: str) -> None:
        argv = [word.replace("{tmp}", temp) for word in step["validate"]]
        try:
            done = run(argv, VALIDATE_TIMEOUT_S)
        except TimedOut as error:
            raise NodeError(f"{step['path']}: {error}", "not_valid") from None
        except OSError as error:
            raise NodeError(
                f"{step['path']}: cannot run the validator {argv[0]}: {error.strerror}",
                "not_valid",
            ) from None
        if done.rc != 0:
            # a validator quotes the line it dislikes, which may be the secret
            said = "(output hidden)" if step["sensitive"] else done.last_line()
            for name in (temp, os.path.basename(temp)):
                said = said.replace(name, os.path.basename(step["path"]))
            raise NodeError(f"{step['path']}: {argv[0]} refuses it: {said[:400]}", "not_valid")

    return validate


def do(step: Json, records: list[Json], record: Record) -> bool:
    """Do one path step; gives whether it changed something.

    Its pre-image and intent are appended to `records` and written by `record` before, and it is
    marked done and written after.
    """
    if step["op"] in stepkinds.ASKED:
        return bool(stepkinds.ASKED[step["op"]].do(step, records, record))
    with atomic.Folder(step["path"]) as folder:
        kept: list[bytes] = []
        current = atomic.read_entry(folder, kept.append)
        wanted = target(step)
        if current == wanted:
            return False
        entry = {
            "op": step["op"],
            "path": step["path"],
            "state": "intent",
            "pre": current,
            "post": wanted,
            # recorded first, so that whoever comes after a kill can remove it; undo uses it too
            "temp": atomic.temp_name(folder.name),
        }
        if kept:
            atomic.save_blob(kept[0])
        if step.get("keep"):
            atomic.save_blob(step["raw"])
        records.append(entry)
        record()
        if step["op"] == "file":
            validate = _validator(step) if step["validate"] else None
            atomic.replace(folder, step["raw"], step["owner"], str(entry["temp"]), validate)
        elif step["op"] == "absent":
            folder.unlink(folder.name)
        else:
            set_directory(folder, step["owner"], current["kind"] == "absent")
        entry["state"] = "done"
        record()
        return True


def set_directory(folder: atomic.Folder, owner: atomic.Owner, make: bool) -> None:
    """Make the folder's entry a directory with this owner and mode, and flush it."""
    if make:
        os.mkdir(folder.name, 0o700, dir_fd=folder.fd)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(folder.name, flags, dir_fd=folder.fd)
    try:
        os.fchown(fd, owner.uid, owner.gid)
        os.fchmod(fd, owner.mode)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.fsync(folder.fd)


def settle(records: list[Json]) -> bool:
    """Find out what became of steps that a kill left announced; gives whether any was settled.

    A file is old or new in whole, so what lies there says which. The temp file is removed.
    """
    changed = False
    for entry in list(records):
        if entry["state"] == "intent" and entry["op"] == "tool":
            # imported here: a snapshot does not send it
            records += importlib.import_module("node.patch.tool_step").settle(entry)
            changed = True
        if entry["state"] == "intent" and entry["op"] == "tag":
            with contextlib.suppress(CannotRead, NodeError):
                changed = importlib.import_module("node.image.tag_step").settle(entry) or changed
        if entry["state"] == "intent" and entry["op"] in kinds.OPS:
            found = kinds.settle(entry)
            entry["state"] = found or "intent"
            changed = changed or found is not None
        if entry["state"] != "intent" or "path" not in entry:
            continue
        if entry["op"] in stepkinds.KINDS:
            changed = stepkinds.KINDS[entry["op"]].settle(entry) or changed
            continue
        if entry["op"] == "kube":
            changed = deployment_step.settle(entry) or changed
            continue
        try:
            with atomic.Folder(entry["path"]) as folder:
                folder.unlink(entry["temp"])
                current = atomic.read_entry(folder)
        except NodeError:
            continue
        if current in (entry["pre"], entry["post"]):
            entry["state"] = "done" if current == entry["post"] else "undone"
            changed = True
    return changed
