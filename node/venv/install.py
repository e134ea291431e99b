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

from node.backup.create import check_room
from node.core import flock, validate
from node.core.errors import Json, NodeError, io_reason
from node.core.run import run
from node.core.run_as_owner import Owner
from node.files import atomic, dirfd, state_dir
from node.venv import pip_plan, writers
from node.venv import versions as place

DEFAULT_TIMEOUT_S = 1800
SYNC_TIMEOUT_S = 300.0
# files of a large venv; a file system without inodes for them is full
ENTRIES = 1000
_ENV = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


class InstallLock(flock.FileLock):
    """The installers' own lock: it ends with its process, so what is partial under it is left."""

    def path(self) -> str:
        """Gives the lock's file."""
        state_dir.ensure()
        return os.path.join(state_dir.root(), "venv.lock")

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
        "package": place.package(body["package"]),
        "version": place.version_text(body["version"]),
        "pip_args": pip_plan.parse_pip_args(body.get("pip_args", [])),
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
    with atomic.Folder(path), InstallLock():
        sweep(path)
        found = place.find(path, name, version)
        if found:
            return _answer(found, False, real, time.time())
        if not os.access(python, os.X_OK):
            raise NodeError(
                f"the base interpreter of {real} is gone ({python})",
                "no_interpreter",
                "install that Python again",
            )
        began = time.time()
        folder = place.free_name(path, name, version)
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
    for folder in place.partials(path):
        if os.path.realpath(path) == os.path.realpath(folder):
            raise NodeError(
                f"{path} leads to {folder}, whose installation was never finished",
                "venv_partial",
                "point the link to a whole version, or restore a backup",
            )
        writers.wait(folder)
        _remove(folder)
        removed.append(folder)
    return removed


def _make_folder(above: str, owner: Owner) -> None:
    """Make the folder of the versions, the venv's owner's, when it is not there."""
    if not os.path.isdir(above):
        with atomic.Folder(above):
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
    fd = os.open(folder + place.PARTIAL, flags, 0o644)
    try:
        os.write(fd, json.dumps(note).encode("utf-8"))
        os.fsync(fd)
    finally:
        os.close(fd)
    state_dir.sync_folder(os.path.dirname(folder))
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
            f"{' '.join(argv[1:4])} ended with {done.rc}: {pip_plan.reason_of(done)}",
            "install_failed",
            "look at the wheels' folder, the network and pip's configuration",
        )


def _verify_version(folder: str, package: str, version: str) -> None:
    """Raise NodeError unless a venv holds exactly this version, with its program."""
    found = place.installed(folder, package)
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
    os.unlink(folder + place.PARTIAL)
    state_dir.sync_folder(os.path.dirname(folder))


def _remove(folder: str) -> None:
    """Remove a folder that is not whole; its announcement goes last."""
    if os.path.isdir(folder) and not os.path.islink(folder):
        shutil.rmtree(folder)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder + place.PARTIAL)
    state_dir.sync_folder(os.path.dirname(folder))


def _installed_names(venv: str) -> set[str]:
    """Gives the canonical names of what is installed in a venv."""
    return {pip_plan.canonical(row["name"]) for row in pip_plan.installed(venv, None)}


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
