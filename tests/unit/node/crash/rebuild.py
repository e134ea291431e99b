"""A disk of the model laid out as real files, for the program to find after the power cut."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from node.change import journal
from node.files import identity
from tests.unit.node.crash.disk import Disk

# how the journal and the notes beside it name a file: by inode and the file system's mark of it
_NUMBER = re.compile(rb'("ino": )(\d+)')
_MARK = re.compile(rb'("mark": ")([^"]*)')


def identity_at(path: Path) -> tuple[bytes, bytes]:
    """Inode and mark of what lies there, as the journal writes them."""
    found = identity.of(str(path), path.lstat())
    return str(found["ino"]).encode(), str(found["mark"]).encode()


def _unsigned(name: str, raw: bytes, told: bytes) -> bytes:
    """A change that was whole, without the checksum that no longer fits."""
    try:
        journal.parse(raw, Path(name).stem)
    except ValueError:
        return told
    return json.dumps({key: value for key, value in json.loads(told).items()
                       if key != "sha256"}).encode()  # fmt: skip


def rebuild(disk: Disk, top: Path, real: dict[int, tuple[bytes, bytes]]) -> None:
    """Lay a disk out under `top`, whose files go.

    A real disk keeps its inodes over a power cut, and the journal names trees by them; here they
    are new, so their identities are written anew in the journal. `real` gives an inode's identity
    in the recorded run by its number in the model.
    """
    for path in top.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    places: dict[int, Path] = {}
    now: dict[bytes, bytes] = {}
    for name, inode in disk.reachable():
        path = top / name
        first = places.setdefault(inode.number, path)
        if first is not path and inode.kind == "file":
            os.link(first, path)
            continue
        if inode.kind == "link":
            path.symlink_to(inode.target)
        elif inode.kind == "folder":
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(inode.data)
        os.chown(path, inode.uid, inode.gid, follow_symlinks=False)
        if inode.kind != "link":
            path.chmod(inode.mode)
        for key, value in inode.xattrs.items():
            os.setxattr(path, key, value, follow_symlinks=False)
        if inode.number in real:
            now.update(zip(real[inode.number], identity_at(path), strict=True))
    for name, inode in disk.reachable():
        if inode.kind == "file" and b'"ino": ' in inode.data:
            told = _NUMBER.sub(lambda m: m[1] + now.get(m[2], b"1"), inode.data)
            told = _MARK.sub(lambda m: m[1] + now.get(m[2], b"none"), told)
            (top / name).write_bytes(_unsigned(name, inode.data, told))
    for name, inode in disk.reachable():
        if inode.mtime_ns is not None:
            times = (inode.mtime_ns, inode.mtime_ns)
            os.utime(top / name, ns=times, follow_symlinks=False)
