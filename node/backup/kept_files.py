"""The host's own files in a backup, each as a file: the unit, its drop-ins, environment, launch.

They lie in backups/ID/files under the path that they have on the host, with mode, owner and time;
nobody but root enters the folder. The manifest lists them.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, NamedTuple

from node.backup import store
from node.core import validate
from node.core.errors import Json, NodeError
from node.files import state_dir

MAX_FILE = MAX_ALL = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Kept(NamedTuple):
    """A file of the host: its bytes, mode and owner, and (in nanoseconds) its time."""

    raw: bytes
    mode: int
    uid: int
    gid: int
    mtime: int

    def row(self) -> Json:
        """Gives the file as the manifest lists it."""
        return {"sha256": hashlib.sha256(self.raw).hexdigest(), "bytes": len(self.raw),
                "mode": f"{self.mode:04o}", "uid": self.uid, "gid": self.gid}  # fmt: skip


Found = dict[str, Kept | None]


def collect(value: Any) -> Found:
    """Gives files of the host by path (of a folder: those in it); None for one that is not there.

    Raises NodeError (`bad_request`, `too_large`).
    """
    found: Found = {}
    for n, row in enumerate(validate.array(value, "files", 50)):
        path = validate.path(row, f"files[{n}]")
        names = [path]
        if os.path.isdir(path):
            names = sorted(os.path.join(path, name) for name in os.listdir(path))[:50]
        for name in names:
            found[name] = read(name)
    if sum(len(kept.raw) for kept in found.values() if kept) > MAX_ALL:
        raise NodeError("the host's files are larger than 1 MiB together", "too_large")
    return found


def read(path: str) -> Kept | None:
    """Gives a file of the host as it is now, None for what is no file."""
    return _read(path) if os.path.isfile(path) else None


def _read(path: str) -> Kept:
    with open(path, "rb") as file:
        info = os.fstat(file.fileno())
        if info.st_size > MAX_FILE:
            raise NodeError(f"{path} is larger than 1 MiB", "too_large")
        mode = stat.S_IMODE(info.st_mode)
        return Kept(file.read(), mode, info.st_uid, info.st_gid, info.st_mtime_ns)


def rows(found: Found) -> Json:
    """Gives the files as the manifest lists them, by path."""
    return {path: kept.row() if kept else None for path, kept in found.items()}


def write(folder: str, found: Found) -> Json:
    """Write the files into a new folder; gives the manifest's list. They are on the disk then."""
    os.mkdir(folder, 0o700)
    for path, kept in found.items():
        if kept is None:
            continue
        place = folder + path
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        fd = os.open(place, _NEW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(kept.raw)
            file.flush()
            os.fchown(fd, kept.uid, kept.gid)
            os.fchmod(fd, kept.mode)
            os.utime(fd, ns=(kept.mtime, kept.mtime))
            os.fsync(fd)
    for above, _, _ in os.walk(folder):
        os.chmod(above, 0o700)  # whatever the umask
        state_dir.sync_folder(above)
    return rows(found)


def check(backup: str, manifest: Json, folder: str = "") -> Found:
    """Gives the files that a backup holds, in another `folder` than its own. Raises NodeError
    (`backup_damaged`) unless each is as the manifest lists it, and no other lies there.
    """
    folder = folder or store.of(backup, store.FILES)
    found: Found = {}
    for path, row in manifest["files"].items():
        try:
            found[path] = None if row is None else _read(folder + path)
        except OSError as error:
            raise store.damaged(backup, f"files{path} cannot be read: {error.strerror}") from None
    if rows(found) != manifest["files"]:
        wrong = next(path for path, row in rows(found).items() if row != manifest["files"][path])
        raise store.damaged(backup, f"files{wrong} is not as it was recorded")
    there = {os.path.join(above, name) for above, _, names in os.walk(folder) for name in names}
    more = there - {folder + path for path, row in manifest["files"].items() if row}
    if more:
        raise store.damaged(backup, f"{min(more)} is not in its manifest")
    return found
