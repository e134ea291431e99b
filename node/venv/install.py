"""venv install: another version of an engine in a venv of its own, beside the one that serves.

Nothing that serves is touched, so no change is opened: the link that makes it the active one is a
step of its own. Killed anywhere, VERSION.partial says so, and the next run makes it anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time

from node.backup import store
from node.backup.create import check_room
from node.change import journal
from node.core import dirfd, errors, files, proc, validate
from node.core.errors import Json, NodeError, io_reason
from node.core.files import Lock
from node.core.owner import Owner
from node.core.run import run
from node.rules.text import VERSION
from node.venv import versions

# The processes that write in a venv: what outlived a killed installer is waited for.

# ensurepip on a slow disk
WAIT_S = 60.0


def wait_for_writers(folder: str) -> None:
    """Wait until no process runs the folder's Python or makes the venv there. Raises NodeError
    (`locked`)."""
    deadline = time.monotonic() + WAIT_S
    while True:
        pids = [pid for pid in proc.pids() if (words := _words(pid))
                and (words[0].startswith(folder + "/") or folder in words)]  # fmt: skip
        if not pids:
            return
        if time.monotonic() >= deadline:
            raise NodeError(
                f"pid {', '.join(map(str, pids))} of an installation that was cut off still works"
                f" in {folder}",
                "locked",
                "wait for it, or end it, then run again",
            )
        time.sleep(0.1)


def _words(pid: int) -> list[str]:
    """Gives a process's command line, empty when it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError:
        return []


DEFAULT_TIMEOUT_S = 1800
SYNC_TIMEOUT_S = 300.0
# files of a large venv; a file system without inodes for them is full
ENTRIES = 1000
_ENV = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


class InstallLock(files.FileLock):
    """The installers' own lock: it ends with its process, so what is partial under it is left."""

    def path(self) -> str:
        """Gives the lock's file."""
        files.ensure_state()
        return os.path.join(files.state_root(), "venv.lock")

    def refused(self, said: str) -> NodeError:
        """Gives the error of another installation under way."""
        return NodeError(
            "another installation is under way on this host",
            "locked",
            "wait for it: an installation whose operator was cut off goes on to its end, and the"
            " next run finds it whole",
        )


def _parse_request(request: Json) -> Json:
    """Gives the request with every value checked."""
    allowed = ("venv", "package", "version", "pip_args", "room_bytes", "timeout_s")
    body = validate.keys(request, "request", allowed, ("venv", "package", "version"))
    return {
        "venv": validate.path(body["venv"], "venv"),
        "package": versions.package(body["package"]),
        "version": versions.version_text(body["version"]),
        "pip_args": versions.parse_pip_args(body.get("pip_args", [])),
        "room_bytes": int(validate.number(body.get("room_bytes", 0), "room_bytes", 0, 1 << 44)),
        "timeout_s": validate.number(
            body.get("timeout_s", DEFAULT_TIMEOUT_S), "timeout_s", 1, 7200
        ),
    }  # fmt: skip


def install(request: Json) -> Json:
    """Make VENVS/VERSION with the package in it, or find it whole. Raises NodeError.

    On any error nothing is left. `room_bytes` is what the present one takes.
    """
    wanted = _parse_request(request)
    path, name, version = wanted["venv"], wanted["package"], wanted["version"]
    real = os.path.realpath(path)
    python = os.path.realpath(os.path.join(real, "bin", "python"))
    if not os.path.isdir(real):
        raise NodeError(f"{path} is not there, or no folder", "no_venv", "name the venv's folder")
    with files.Folder(path), InstallLock():
        sweep(path)
        found = versions.find(path, name, version)
        if found:
            return _answer(found, False, real, time.time())
        if not os.access(python, os.X_OK):
            raise NodeError(
                f"the base interpreter of {real} is gone ({python})",
                "no_interpreter",
                "install that Python again",
            )
        began = time.time()
        folder = versions.free_name(path, name, version)
        owner = Owner(real)
        _make_folder(os.path.dirname(folder), owner)
        check_room(os.path.dirname(folder), wanted["room_bytes"], ENTRIES)
        try:
            _begin(folder, wanted, owner)
            _fill(folder, wanted, python, owner)
            _finish(folder)
        except (NodeError, OSError) as error:
            with contextlib.suppress(OSError):
                _remove(folder)
            reason = io_reason(error) if isinstance(error, OSError) else str(error)
            code = error.code if isinstance(error, NodeError) else "io"
            remedy = error.remedy if isinstance(error, NodeError) else ""
            raise NodeError(f"{reason}; nothing was installed", code, remedy) from error
        return _answer(folder, True, real, began)


def sweep(path: str) -> list[str]:
    """Remove what killed installations left; gives the folders. Call it under the lock."""
    removed: list[str] = []
    for folder in versions.partials(path):
        if os.path.realpath(path) == os.path.realpath(folder):
            raise NodeError(
                f"{path} leads to {folder}, whose installation was never finished",
                "venv_partial",
                "point the link to a whole version, or restore a backup",
            )
        wait_for_writers(folder)
        _remove(folder)
        removed.append(folder)
    return removed


def _make_folder(above: str, owner: Owner) -> None:
    """Make the folder of the versions, the venv's owner's, when it is not there."""
    if not os.path.isdir(above):
        with files.Folder(above):
            _make(above, owner)


def _begin(folder: str, wanted: Json, owner: Owner) -> None:
    """Announce the folder, flushed, before there is one; then make it, empty, its owner's."""
    seen = os.statvfs(os.path.dirname(folder))
    note = {
        "what": f"install {wanted['package']} {wanted['version']}",
        "since_unix_s": time.time(),
        "free_bytes": seen.f_bavail * seen.f_frsize,
        "room_bytes": wanted["room_bytes"],
    }
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(folder + versions.PARTIAL, flags, 0o644)
    try:
        os.write(fd, json.dumps(note).encode("utf-8"))
        os.fsync(fd)
    finally:
        os.close(fd)
    files.sync_folder(os.path.dirname(folder))
    _make(folder, owner)


def _make(folder: str, owner: Owner) -> None:
    """Make a folder, its owner's: by descriptor, who owns the one above may swap names in it."""
    above, name = os.path.split(folder)
    fd = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with dirfd.inside(fd, name, folder, dirfd.Owner(owner.uid, owner.gid)):
            pass
    finally:
        os.close(fd)


def _fill(folder: str, wanted: Json, python: str, owner: Owner) -> None:
    """Make the venv and install into it, as its owner, all within one time limit."""
    deadline = time.monotonic() + wanted["timeout_s"]
    for argv in ([python, "-m", "venv", folder], _pip(folder, wanted)):
        _run_as(owner, argv, deadline)
    _verify_version(folder, wanted["package"], wanted["version"])


def _pip(folder: str, wanted: Json) -> list[str]:
    """Gives the command with which a venv's own pip installs the wanted version."""
    target = f"{wanted['package']}=={wanted['version']}"
    python = os.path.join(folder, "bin", "python")
    return [python, "-m", "pip", "install", "--quiet", *wanted["pip_args"], target]


def _run_as(owner: Owner, argv: list[str], deadline: float) -> None:
    """Run an installer's command until a time of the monotonic clock. Raises NodeError."""
    # the unit's own caches and settings are not the installer's
    done = owner.run(argv, max(1.0, deadline - time.monotonic()), _ENV)
    if done.rc != 0:
        raise NodeError(
            f"{' '.join(argv[1:4])} ended with {done.rc}: {versions.reason_of(done)}",
            "install_failed",
            "look at the wheels' folder, the network and pip's configuration",
        )


def _verify_version(folder: str, package: str, version: str) -> None:
    """Raise NodeError unless a venv holds exactly this version, with its program."""
    found = versions.installed_versions(folder, package)
    if found != (version,):
        raise NodeError(
            f"pip installed {package} {', '.join(found) or 'of no version'}, not {version}",
            "install_failed",
        )
    entry = os.path.join(folder, "bin", package)
    if not os.access(entry, os.X_OK):
        raise NodeError(f"{entry} is not there, or cannot be executed", "install_failed")


def _finish(folder: str) -> None:
    """Flush the file system, then take the announcement away: from here on it is whole."""
    done = run(["sync", "-f", folder], SYNC_TIMEOUT_S)
    if done.rc != 0:
        raise NodeError(f"sync: {done.last_line()}", "io")
    os.unlink(folder + versions.PARTIAL)
    files.sync_folder(os.path.dirname(folder))


def _remove(folder: str) -> None:
    """Remove a folder that is not whole; its announcement goes last."""
    if os.path.isdir(folder) and not os.path.islink(folder):
        shutil.rmtree(folder)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder + versions.PARTIAL)
    files.sync_folder(os.path.dirname(folder))


def _installed_names(venv: str) -> set[str]:
    """Gives the canonical names of what is installed in a venv."""
    return {versions.canonical(row["name"]) for row in versions.installed_rows(venv, None)}


def _answer(folder: str, made: bool, old: str, began: float) -> Json:
    """Gives what became of it; `left_behind` is what only the present venv has."""
    missing = sorted(_installed_names(old) - _installed_names(folder))
    return {
        "folder": folder,
        "made": made,
        "changed": made,
        "left_behind": missing[:50],
        "took_s": round(time.time() - began, 2),
    }


# venv prune: versions that lie beside the active one and that nobody needs any more.
#
# Kept whatever is asked for: the active version, the one before it, what a change that is not
# settled
# names, and what a process runs from. A version that could not start lies there for its post-
# mortem
# until somebody asks for this.

_REPLACED = ".former-"


def prune(request: Json) -> Json:
    """Remove the versions beside a venv that nobody needs; gives `removed` and `kept`, each with
    why, and `freed_bytes`.

    Raises NodeError when the journal is damaged: nobody knows then what is needed.
    """
    body = validate.keys(request, "request", ("venv", "package", "dry"), ("venv", "package"))
    path, name = validate.path(body["venv"], "venv"), versions.package(body["package"])
    if validate.boolean(body.get("dry", False), "dry"):
        return _prune(path, name, True)  # reads only
    with files.Folder(path), InstallLock(), Lock("venv prune"):
        sweep(path)
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
        version = ", ".join(versions.installed_versions(folder, name)) or "of no version"
        row = {"path": folder, "version": version, "bytes": store.disk_bytes(folder)}
        why = _why_kept(folder, path, former, changes)
        if why:
            kept.append({**row, "why": why})
            continue
        removed.append({**row, "why": _why_goes(folder, changes)})
        if not dry:
            if errors.interrupted():
                raise NodeError(f"ended by {errors.interrupted()}; {folder} and what follows is"
                                " kept", "interrupted", "run it again")  # fmt: skip
            _remove_prune(folder)
    return {"removed": removed, "kept": kept, "dry": dry,
            "freed_bytes": sum(row["bytes"] for row in removed)}  # fmt: skip


def _versions(path: str) -> list[str]:
    """Gives the folders that hold a version, those that an upgrade displaced among them."""
    try:
        names = sorted(os.listdir(versions.folder_of(path)))
    except OSError:
        return []
    folders = [
        os.path.join(versions.folder_of(path), name)
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
    if versions.is_partial(folder):
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


def _remove_prune(folder: str) -> None:
    """Remove a version; from the first moment a mark says that it is not whole."""
    if os.path.basename(folder).startswith(_REPLACED):
        shutil.rmtree(folder)
        return
    note = json.dumps({"what": f"remove {os.path.basename(folder)}"})
    files.save_private(folder + versions.PARTIAL, note.encode("utf-8"))
    shutil.rmtree(folder)
    os.unlink(folder + versions.PARTIAL)
    files.sync_folder(os.path.dirname(folder))
