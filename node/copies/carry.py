"""Bring the files of a backup into another folder: resumed after a kill, read back from there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from node.backup import kept_files, store, verify
from node.backup.compress import CHUNK, FLUSH
from node.backup.payload_reader import forget
from node.core.errors import Json, NodeError
from node.files import state_dir

# told the bytes that were written or read; it may raise
Told = Callable[[int], None]
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def whole(source: str, target: str, manifest: Json, beside: list[str], told: Told) -> None:
    """Bring a backup's folder `source` to `target`, which is there once it is whole.

    Until then it is `target`.partial, and a later call goes on with it. Files that a backup of the
    folders `beside` has as well are linked, where the file system can. Every file is read back
    from `target`'s disk and compared with the manifest. Raises NodeError, OSError.
    """
    partial = target + store.PARTIAL
    store.private_folder(partial)
    for name, row in store.parts(manifest).items():
        verify.stop()
        _one(os.path.join(source, name), os.path.join(partial, name), row, beside, told)
    files = os.path.join(source, store.FILES)
    finish(target, manifest, kept_files.check(manifest["id"], manifest, files))


def finish(target: str, manifest: Json, found: kept_files.Found) -> None:
    """Make `target` of `target`.partial, whose files have come: the host's files and the manifest
    are what lacks. Raises NodeError, OSError.
    """
    partial = target + store.PARTIAL
    files = os.path.join(partial, store.FILES)
    if not os.path.isdir(files):
        temporary = files + store.PARTIAL
        _remove_files(temporary)
        kept_files.write(temporary, found)
        os.rename(temporary, files)
    kept_files.check(manifest["id"], manifest, files)
    store.save_manifest(os.path.join(partial, store.MANIFEST), manifest)
    state_dir.sync_folder(partial)
    os.rename(partial, target)
    state_dir.sync_folder(os.path.dirname(target))


def check(target: str, manifest: Json, told: Told) -> None:
    """Read a copy back. Raises NodeError (`copy_damaged`) unless it is as the manifest says."""
    for name, row in store.parts(manifest).items():
        verify.stop()
        path = os.path.join(target, name)
        if not os.path.isfile(path) or sha256(path, told) != row["sha256"]:
            raise damaged(path)
    kept_files.check(manifest["id"], manifest, os.path.join(target, store.FILES))


def require_same(manifest: Json, target: str) -> None:
    """Raise NodeError when another backup lies in `target` under the same id."""
    if store.parse(manifest["id"], target)["seal"] != manifest["seal"]:
        raise damaged(target)


def damaged(path: str) -> NodeError:
    """Gives the error for a file that is not what was recorded."""
    return NodeError(f"{path} is not as it was recorded", "copy_damaged",
                     "look at both disks (sudo dmesg --level=err), then copy again")  # fmt: skip


def _one(source: str, target: str, row: Json, beside: list[str], told: Told) -> None:
    size = os.path.getsize(target) if os.path.isfile(target) else 0
    if size == 0:
        size = link(target, row, beside)
    again = size > 0
    if size != row["bytes"]:
        _append(source, target, row["bytes"], told)
    if sha256(target, told) == row["sha256"]:
        return
    os.unlink(target)
    if not again:
        raise damaged(target)
    # what an earlier call left was no good
    _append(source, target, row["bytes"], told)
    if sha256(target, told) != row["sha256"]:
        os.unlink(target)
        raise damaged(target)


def link(target: str, row: Json, beside: list[str]) -> int:
    """Link a file of the same bytes in another backup, where there is one; gives its size."""
    for folder in beside:
        try:
            manifest = store.parse(os.path.basename(folder), folder)
        except NodeError:
            continue
        for name, other in store.parts(manifest).items():
            if other["sha256"] == row["sha256"] and row["bytes"]:
                try:
                    os.link(os.path.join(folder, name), target, follow_symlinks=False)
                    return os.path.getsize(target)
                except OSError:  # a file system without links, or the file is gone
                    return 0
    return 0


def _append(source: str, target: str, total: int, told: Told) -> None:
    """Write what lacks of a file; it is on the disk then, and in no page cache."""
    reading, writing = os.open(source, _READ), os.open(target, _WRITE, 0o600)
    try:
        done = os.fstat(writing).st_size
        if done > total:
            os.ftruncate(writing, 0)
            done = 0
        flushed = done
        os.lseek(reading, done, os.SEEK_SET)
        os.lseek(writing, done, os.SEEK_SET)
        while raw := os.read(reading, CHUNK):
            view = memoryview(raw)
            while view:
                view = view[os.write(writing, view) :]
            done += len(raw)
            told(len(raw))
            verify.stop()
            if done - flushed >= FLUSH:
                os.fdatasync(writing)
                forget(writing)
                forget(reading)
                flushed = done
        os.fsync(writing)
        forget(reading)
    finally:
        os.close(reading)
        os.close(writing)


def sha256(path: str, told: Told) -> str:
    """Gives a file's sha256, read from the disk."""
    digest = hashlib.sha256()
    fd = os.open(path, _READ)
    try:
        forget(fd)
        done = 0
        while raw := os.read(fd, CHUNK):
            digest.update(raw)
            told(len(raw))
            done += len(raw)
            if done % FLUSH < CHUNK:
                forget(fd)
            verify.stop()
        forget(fd)
    finally:
        os.close(fd)
    return digest.hexdigest()


def _remove_files(folder: str) -> None:
    """Remove a half-written folder of the host's files."""
    for above, folders, names in os.walk(folder, topdown=False):
        for name in names:
            os.unlink(os.path.join(above, name))
        for name in folders:
            os.rmdir(os.path.join(above, name))
    if os.path.isdir(folder):
        os.rmdir(folder)
