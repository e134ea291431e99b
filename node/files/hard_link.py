"""The other names of a file that is replaced: kept as one more hard link, until it goes back.

A file put back from its bytes is a new one, and its other names (a package cache's, as of uv) would
no longer be the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat

from node.core.errors import Json
from node.files import atomic, attributes, identity, state_dir


def kept_folder() -> str:
    """Gives the folder of the further names."""
    return os.path.join(state_dir.root(), "linked")


def _path(name: str) -> str:
    return os.path.join(kept_folder(), name)


def look(folder: atomic.Folder) -> Json | None:
    """Gives the identity of a file of several names, and the name to keep it by; else None."""
    info = folder.lstat()
    if info is None or not stat.S_ISREG(info.st_mode) or info.st_nlink < 2:
        return None
    return {"file": identity.of(folder.path, info), "kept": secrets.token_hex(8)}


def keep(folder: atomic.Folder, linked: Json | None) -> None:
    """Give the file its further name, where the state folder lies on the same file system."""
    if linked is None:
        return
    path = _path(linked["kept"])
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with contextlib.suppress(OSError):
        os.link(folder.name, path, src_dir_fd=folder.fd, follow_symlinks=False)
        state_dir.sync_folder(os.path.dirname(path))


def put_back(
    folder: atomic.Folder, entry: Json, owner: atomic.Owner, xattrs: dict[str, str]
) -> bool:
    """Put the very file back; gives False where it was not kept or was written to meanwhile."""
    if entry.get("linked") is None:
        return False
    kept = _path(entry["linked"]["kept"])
    try:
        fd = os.open(kept, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        if hashlib.sha256(file.read()).hexdigest() != entry["pre"]["sha256"]:
            return False
        os.fchown(fd, owner.uid, owner.gid)
        os.fchmod(fd, owner.mode)
        attributes.write(fd, xattrs)
        os.fsync(fd)
    os.link(kept, entry["temp"], dst_dir_fd=folder.fd, follow_symlinks=False)
    os.rename(entry["temp"], folder.name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
    folder.unlink(entry["temp"])  # rename(2) leaves it where both are one file already
    os.fsync(folder.fd)
    return True


def forget(entry: Json) -> None:
    """Remove the further name, once the file is as it was."""
    if entry.get("linked") is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_path(entry["linked"]["kept"]))


def lost(folder: atomic.Folder, linked: Json | None) -> list[str]:
    """Gives a line when the file is no longer one with its other names; `linked` None: no other."""
    info = folder.lstat()
    if linked is None or info is None:
        return []
    if identity.of(folder.path, info) == linked["file"]:
        return []
    inode = linked["file"]["ino"]
    return [f"{folder.path}: it was a hard link to inode {inode} and is a file of its own "
            f"(find / -xdev -inum {inode})"]  # fmt: skip
