"""Where the program keeps its lock, journal and pre-images: root-only folders."""

from __future__ import annotations

import os
import stat

from node.core.errors import NodeError

DEFAULT_ROOT = "/var/lib/rigbook"


def root() -> str:
    """Gives the state folder; RIGBOOK_STATE names another one (tests)."""
    return os.environ.get("RIGBOOK_STATE") or DEFAULT_ROOT


def journal_folder() -> str:
    """Gives the folder of the changes, one file each."""
    return os.path.join(root(), "journal")


def blob_folder() -> str:
    """Gives the folder of the pre-images, named by their sha256."""
    return os.path.join(root(), "blobs")


def lock_path() -> str:
    """Gives the lock's path."""
    return os.path.join(root(), "lock")


def sync_folder(path: str) -> None:
    """Flush a folder's entries to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def ensure() -> None:
    """Make the state folders, 0700 and ours. Raises NodeError when one is not a safe folder."""
    parent = os.path.dirname(root())
    os.makedirs(parent, mode=0o755, exist_ok=True)
    for folder in (root(), journal_folder(), blob_folder()):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        else:
            sync_folder(os.path.dirname(folder))
        info = os.lstat(folder)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            raise NodeError(f"{folder} is not a folder of our own", "unsafe_state")
        if stat.S_IMODE(info.st_mode) != 0o700:
            os.chmod(folder, 0o700)
