"""venv prune: versions that lie beside the active one and that nobody needs any more.

Kept whatever is asked for: the active version, the one before it, what a change that is not settled
names, and what a process runs from. A version that could not start lies there for its post-mortem
until somebody asks for this.
"""

from __future__ import annotations

import json
import os
import shutil

from node.backup import walk
from node.change import journal
from node.core import proc, signals, validate
from node.core.errors import Json, NodeError
from node.files import atomic, state_dir
from node.files.host_lock import Lock
from node.rules.versions import VERSION
from node.venv import install as installing
from node.venv import versions as place

_REPLACED = ".former-"


def prune(request: Json) -> Json:
    """Remove the versions beside a venv that nobody needs; gives `removed` and `kept`, each with
    why, and `freed_bytes`.

    Raises NodeError when the journal is damaged: nobody knows then what is needed.
    """
    body = validate.keys(request, "request", ("venv", "package", "dry"), ("venv", "package"))
    path, name = validate.path(body["venv"], "venv"), place.package(body["package"])
    if validate.boolean(body.get("dry", False), "dry"):
        return _prune(path, name, True)  # reads only
    with atomic.Folder(path), installing.InstallLock(), Lock("venv prune"):
        installing.sweep(path)
        return _prune(path, name, False)


def _prune(path: str, name: str, dry: bool) -> Json:
    """Sort the versions, and remove those that go unless it is a dry run."""
    changes, broken = journal.read_all()
    if broken:
        raise journal.broken_error(broken)
    removed: list[Json] = []
    kept: list[Json] = []
    former = _former(path, changes)
    for folder in _versions(path):
        version = ", ".join(place.installed(folder, name)) or "of no version"
        row = {"path": folder, "version": version, "bytes": walk.disk_bytes(folder)}
        why = _why_kept(folder, path, former, changes)
        if why:
            kept.append({**row, "why": why})
            continue
        removed.append({**row, "why": _why_goes(folder, changes)})
        if not dry:
            if signals.interrupted():
                raise NodeError(f"ended by {signals.interrupted()}; {folder} and what follows is"
                                " kept", "interrupted", "run it again")  # fmt: skip
            _remove(folder)
    return {"removed": removed, "kept": kept, "dry": dry,
            "freed_bytes": sum(row["bytes"] for row in removed)}  # fmt: skip


def _versions(path: str) -> list[str]:
    """Gives the folders that hold a version, those that an upgrade displaced among them."""
    try:
        names = sorted(os.listdir(place.folder_of(path)))
    except OSError:
        return []
    folders = [
        os.path.join(place.folder_of(path), name)
        for name in names
        if VERSION.match(name) or name.startswith(_REPLACED)
    ]
    return [f for f in folders if os.path.isdir(f) and not os.path.islink(f)]


def _former(path: str, changes: list[Json]) -> str | None:
    """Gives the folder that the link led to before the one that it leads to now, or None.

    The newest blessed change of the link knows it; one that was undone left no trace of its own.
    """
    now = os.path.realpath(path)
    for one in changes:
        for step in one["steps"]:
            if one["status"] != "COMMITTED" or step.get("path") != path:
                continue
            target = (step.get("pre") or {}).get("target")
            if step["op"] == "tree" and step.get("displaced"):
                target = step["displaced"]
            folder = target and os.path.realpath(os.path.join(os.path.dirname(path), target))
            if folder and folder != now:
                return str(folder)
    return None


def _why_kept(folder: str, path: str, former: str | None, changes: list[Json]) -> str:
    """Gives why a version stays, "" when it may go."""
    if folder == os.path.realpath(path):
        return "the active version"
    if folder == former:
        return "the version before the active one: the quick way back"
    for one in changes:
        if one["status"] in ("OPEN", "INCONSISTENT") and _names(one, folder):
            return f"change {one['id']} is not settled and names it"
    if place.is_partial(folder):
        return "it is being installed"
    pids = _running(folder)
    return f"pid {pids[0]} runs from it" if pids else ""


def _names(one: Json, folder: str) -> bool:
    """Gives whether a change names a folder, or something in it."""
    text = json.dumps(one)
    return any(json.dumps(folder)[1:-1] + end in text for end in ('"', "/"))


def _why_goes(folder: str, changes: list[Json]) -> str:
    """Gives what is known of a version that goes: the newest change that names it."""
    for one in changes:
        if _names(one, folder):
            return f"neither active nor former; change {one['id']} was {one['status']}"
    return "neither active nor former"


def _running(folder: str) -> list[int]:
    """Gives the processes whose program or working folder lies in it."""
    found: list[int] = []
    for pid in proc.pids():
        argv = proc.argv(pid)
        try:
            cwd = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            cwd = ""
        if any(word.startswith(folder + "/") for word in (*argv[:2], cwd + "/")):
            found.append(pid)
    return found


def _remove(folder: str) -> None:
    """Remove a version; from the first moment a mark says that it is not whole."""
    if os.path.basename(folder).startswith(_REPLACED):
        shutil.rmtree(folder)
        return
    note = json.dumps({"what": f"remove {os.path.basename(folder)}"})
    atomic.save_private(folder + place.PARTIAL, note.encode("utf-8"))
    shutil.rmtree(folder)
    os.unlink(folder + place.PARTIAL)
    state_dir.sync_folder(os.path.dirname(folder))
