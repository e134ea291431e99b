"""What lies in `.rigbook/` beside weights: the mark of a set that is half switched, and the former
files that a change replaced, which its undo puts back.

A set's former files stay until the next run that brings files there, once their change is settled:
one former set at most lies beside each folder of weights. They may be removed by hand at any time;
the undo of their change is refused then.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator

from node.change import journal
from node.core.errors import Json
from node.core.validate import ID
from node.weights.manifest import OWN, Folder

INCOMPLETE = "incomplete"
# no change's id has a "+" in it
_DISPLACED = "displaced-"
_PRIVATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_MARK = 4096


def displaced_name(change: str, number: int) -> str:
    """Gives the name of the folder for what the `number`th set of a change replaces."""
    return f"{_DISPLACED}{change}" + (f"+{number}" if number else "")


def mark(own: int, change: str) -> None:
    """Says on the disk that the set is none until `unmark`; `own` is `.rigbook`'s descriptor."""
    with os.fdopen(os.open(INCOMPLETE, _PRIVATE, 0o644, dir_fd=own), "w") as file:
        json.dump({"change": change}, file)
        file.flush()
        os.fsync(file.fileno())
    os.fsync(own)


def unmark(own: int) -> None:
    """Says that the set is whole again."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(INCOMPLETE, dir_fd=own)
        os.fsync(own)


def incomplete(path: str) -> str | None:
    """Gives the change that has left the weights at `path` half switched, or None."""
    folder = Folder(path)
    if folder.only is not None:
        return None  # one file is switched whole
    try:
        fd = os.open(os.path.join(path, OWN, INCOMPLETE), _LOOK)
        with os.fdopen(fd, "rb") as file:
            return str(json.loads(file.read(_MAX_MARK))["change"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def displaced(path: str) -> list[Json]:
    """Gives the former files that are kept beside the weights at `path`: a row a folder with its
    change, path, number of files and bytes."""
    folder = Folder(path)
    found: list[Json] = []
    own = os.path.join(folder.path, OWN)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(own)):
            change = name.removeprefix(_DISPLACED).partition("+")[0]
            if name.startswith(_DISPLACED) and ID.match(change):
                sizes = list(_sizes(os.path.join(own, name)))
                found.append({"change": change, "path": os.path.join(own, name),
                              "files": len(sizes), "bytes": sum(sizes)})  # fmt: skip
    return found


def _sizes(folder: str) -> Iterator[int]:
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                info = os.lstat(os.path.join(here, name))
                yield info.st_size if stat.S_ISREG(info.st_mode) else 0


def free_former(path: str, keep: str) -> list[Json]:
    """Removes the former files of changes that are settled; gives their rows.

    Those of the change `keep`, and of one that may still have to be undone, stay.
    """
    Folder(path).require_own()
    freed: list[Json] = []
    for row in displaced(path):
        if row["change"] != keep and is_settled(row["change"]):
            shutil.rmtree(row["path"])
            freed.append(row)
    return freed


def is_settled(change: str) -> bool:
    """Gives whether nothing of a change is left to finish or undo: it ended, or is not known."""
    found = journal.find(change)
    return found is None or found["status"] in ("COMMITTED", "ROLLED_BACK")
