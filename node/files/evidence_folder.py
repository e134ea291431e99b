"""Where bundles of evidence lie: a folder each below the state folder, root's alone."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

from node.files import state_dir

KEEP = 5
# a bundle that is being written, or that a kill left
UNDONE = ".part"


class Bundle(NamedTuple):
    """A bundle on the disk: its path and the bytes of its files."""

    path: str
    bytes: int


def root() -> str:
    """Gives the folder of the bundles."""
    return os.path.join(state_dir.root(), "evidence")


def bundles() -> list[Bundle]:
    """Gives the bundles, newest first: their names begin with the time."""
    try:
        names = sorted(os.listdir(root()), reverse=True)
    except FileNotFoundError:
        return []
    found = []
    for path in (os.path.join(root(), name) for name in names):
        with os.scandir(path) as rows:
            size = sum(row.stat(follow_symlinks=False).st_size for row in rows)
        found.append(Bundle(path, size))
    return found


def remove(path: str) -> None:
    """Remove a bundle."""
    shutil.rmtree(path)


def begin(name: str) -> str:
    """Makes a new bundle's folder, 0700, and the room for it; gives its path for now."""
    state_dir.ensure()
    os.makedirs(root(), mode=0o700, exist_ok=True)
    for old in [row.path for row in bundles() if row.path.endswith(UNDONE)]:
        remove(old)
    for old in [row.path for row in bundles()][KEEP - 1 :]:
        remove(old)
    path = os.path.join(root(), name) + UNDONE
    os.mkdir(path, 0o700)
    return path


def finish(path: str) -> str:
    """Gives the whole bundle its name; gives its path."""
    done = path[: -len(UNDONE)]
    os.rename(path, done)
    state_dir.sync_folder(root())
    return done
