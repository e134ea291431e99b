"""Replace, remove and describe files so that a reader or a crash sees old or new, never a mix.

All work goes through the parent folder's descriptor: a path swapped between check and use
cannot redirect it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from node.core.errors import Json, NodeError
from node.files import attributes
from node.files.state_dir import blob_folder, root

MAX_BYTES = 64 << 20
TEMP_PREFIX = ".rigbook-"
ABSENT: Json = {"kind": "absent"}


class Owner(NamedTuple):
    """Mode bits, uid and gid of a file to be."""

    mode: int
    uid: int
    gid: int


class Folder:
    """The opened parent folder of one path, as a context manager.

    Raises NodeError when it is missing or when somebody else may swap entries in it or above it;
    without `links` also when the folder is a link, which its owner may have put there.
    """

    def __init__(self, path: str, links: bool = True) -> None:
        self.path = path
        self.links = links
        self.parent, self.name = os.path.split(path)
        self.fd = -1

    def __enter__(self) -> Folder:
        for folder in _ancestors(self.parent):
            try:
                info = os.stat(folder)
            except FileNotFoundError:
                raise NodeError(
                    f"{self.path}: the folder {folder} does not exist",
                    "no_folder",
                    "make it first, with a directory step",
                ) from None
            if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
                raise NodeError(
                    f"{self.path}: everybody may write in the folder {folder}",
                    "unsafe_folder",
                    f"chmod o-w {shlex.quote(folder)}",
                )
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            self.fd = os.open(self.parent, flags if self.links else flags | os.O_NOFOLLOW)
        except NotADirectoryError:
            raise NodeError(f"{self.path}: the folder {self.parent} is a link", "unsafe_folder",
                            f"ls -ld {shlex.quote(self.parent)}") from None  # fmt: skip
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        os.close(self.fd)
        if isinstance(error, OSError) and not str(error.filename or "").startswith("/"):
            error.filename = self.path  # nobody knows a temp's name, and a write has none

    def lstat(self) -> os.stat_result | None:
        """Gives the entry's state, a link not followed, or None when it is absent."""
        try:
            return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def unlink(self, name: str) -> None:
        """Remove an entry of the folder when it is there, and flush the folder."""
        try:
            # a read-only file system refuses to unlink even what is not there
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        os.fsync(self.fd)


def _ancestors(folder: str) -> Iterator[str]:
    """Gives a folder and those above it, from the root down."""
    parts = folder.split("/")
    for n in range(1, len(parts) + 1):
        yield "/".join(parts[:n]) or "/"


def read_entry(folder: Folder, keep: Callable[[bytes], None] | None = None) -> Json:
    """Gives the entry's description: absent; a folder; or a file with sha256, mode and owner.

    `keep` is called with the file's bytes. Raises NodeError for a link or a special file.
    """
    info = folder.lstat()
    if info is None:
        return dict(ABSENT)
    owner = {"mode": f"{stat.S_IMODE(info.st_mode):04o}", "uid": info.st_uid, "gid": info.st_gid}
    if stat.S_ISDIR(info.st_mode):
        return {"kind": "directory", **owner}
    if not stat.S_ISREG(info.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "a special file"
        raise NodeError(
            f"{folder.path} is {what}: it is not touched",
            "not_a_file",
            f"look at it with: ls -l {shlex.quote(folder.path)}",
        )
    if info.st_size > MAX_BYTES:
        raise NodeError(f"{folder.path} is larger than {MAX_BYTES >> 20} MiB", "too_large")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(folder.name, flags, dir_fd=folder.fd), "rb") as file:
        raw = file.read()
    if keep:
        keep(raw)
    return {"kind": "file", "sha256": hashlib.sha256(raw).hexdigest(), **owner}


def temp_name(name: str) -> str:
    """Gives a fresh hidden name in the same folder; the suffix stays, validators look at it."""
    tail = name[-160:]
    while len(os.fsencode(tail)) > 160:
        tail = tail[1:]
    return f"{TEMP_PREFIX}{secrets.token_hex(6)}-{tail}"


def _write_all(fd: int, raw: bytes) -> None:
    """Write all bytes and flush them to the disk."""
    view = memoryview(raw)
    while view:
        view = view[os.write(fd, view) :]
    os.fsync(fd)


def replace(
    folder: Folder,
    raw: bytes,
    owner: Owner,
    temp: str,
    validate: Callable[[str], None] | None = None,
    xattrs: dict[str, str] | None = None,
) -> None:
    """Put a file in place of the folder's entry, in one step for every reader.

    `validate` gets the temp file's path and raises to refuse it. `xattrs`: those that it is to have
    (attributes.py). On any error the temp file is gone and the entry is as it was.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temp, flags, 0o600, dir_fd=folder.fd)
    try:
        try:
            # owner before mode: chown clears bits, and nobody else may read before both are set
            os.fchown(fd, owner.uid, owner.gid)
            os.fchmod(fd, owner.mode)
            if xattrs is not None:
                attributes.write(fd, xattrs)
            _write_all(fd, raw)
        finally:
            os.close(fd)
        if validate:
            validate(os.path.join(folder.parent, temp))
        info = folder.lstat()
        if info is not None and not stat.S_ISREG(info.st_mode):
            raise NodeError(f"{folder.path} is not a plain file", "not_a_file")
        os.rename(temp, folder.name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp, dir_fd=folder.fd)
        raise
    os.fsync(folder.fd)


def save_private(path: str, raw: bytes) -> None:
    """Write a file of the state folder, 0600, atomically and flushed."""
    with Folder(path) as folder:
        owner = Owner(0o600, os.geteuid(), os.getegid())
        replace(folder, raw, owner, temp_name(folder.name))


def save_blob(raw: bytes) -> str:
    """Keep a pre-image; gives its sha256, which is its name. Safe on disk on return."""
    digest = hashlib.sha256(raw).hexdigest()
    path = os.path.join(blob_folder(), digest)
    try:
        with open(path, "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() == digest:
                return digest
    except FileNotFoundError:
        pass
    save_private(path, raw)
    return digest


def load_blob(digest: str) -> bytes:
    """Gives a pre-image's bytes. Raises NodeError when it is gone or damaged."""
    try:
        with open(os.path.join(blob_folder(), digest), "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        raw = b""
    if hashlib.sha256(raw).hexdigest() != digest:
        raise NodeError(
            f"the kept copy {digest[:12]} is gone or damaged",
            "blob_damaged",
            f"put the file back by hand; the copies are in {root()}/blobs",
        )
    return raw
