"""The cache: things built once, named by the hash of their recipe, complete or absent."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def recipe_hash(recipe: object) -> str:
    """The first 12 hex digits of the SHA-256 of a recipe, written as canonical JSON."""
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file: one builder at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def build_once(target: Path, build: Callable[[Path], None]) -> bool:
    """Build ``target`` under a temporary name and rename it; False if it was there.

    A temporary left by a killed builder is removed: the lock says nobody uses it.
    """
    if target.exists():
        return False
    with locked(target.parent / f".{target.name}.lock"):
        if target.exists():
            return False
        temporary = target.parent / f".{target.name}.part"
        remove(temporary)
        try:
            build(temporary)
            temporary.rename(target)
        finally:
            remove(temporary)
    return True


def remove(path: Path) -> None:
    """Remove a file or a whole tree; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def disk_usage(path: Path) -> int:
    """Bytes on disk of a file or a tree, hard links counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        try:
            info = entry.lstat()
        except OSError:
            continue
        if (info.st_dev, info.st_ino) not in seen:
            seen.add((info.st_dev, info.st_ino))
            total += info.st_blocks * 512
    return total
