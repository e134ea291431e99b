"""The host's own files that a backup recorded beside its tree: the unit, its drop-ins, its launch.

A restore brings them back with the tree: an old engine under a unit and flags of a newer one does
not start. Each is a journalled step, so undo gives back what lay there.
"""

from __future__ import annotations

import os

from node.change import kinds, undo
from node.core.errors import Json
from node.core.step_kind import Seen, Steps
from node.core.systemctl import systemctl
from node.systemd.hold import FILE as HOLD
from node.systemd.unit_files import FOLDER_SUFFIX

# what a text that was no UTF-8 holds: its bytes are not in the backup
_LOST = "\ufffd"
_UNIT_MODE = "0644"


def recorded(manifest: Json) -> dict[str, str | None]:
    """Gives the texts of the files that the backup recorded, by path; None for one without."""
    found: dict[str, str | None] = manifest["documents"].get("files", {})
    return found


def differing(manifest: Json) -> list[Json]:
    """Gives the steps that bring the recorded files back; none when they are as recorded.

    A drop-in of a recorded unit that was not there at the time goes.
    """
    found: list[Json] = []
    modes: dict[str, str] = manifest["documents"].get("modes", {})
    for path, text in sorted(recorded(manifest).items()):
        if text is None or _LOST in text:
            continue
        wanted = text.encode("utf-8")
        if _content(path) == wanted:
            continue
        folder = os.path.dirname(path)
        if not os.path.isdir(folder) and os.path.isdir(os.path.dirname(folder)):
            row: Json = {"op": "directory", "path": folder, "mode": "0755"}
            found += [] if row in found else [row]
        mode = modes.get(path) or _mode(path) or _UNIT_MODE
        found.append({"op": "file", "path": path, "mode": mode, "content": text})
    return found + [{"op": "absent", "path": path} for path in _added(manifest)]


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _mode(path: str) -> str | None:
    try:
        return f"{os.stat(path).st_mode & 0o7777:04o}"
    except OSError:
        return None


def _added(manifest: Json) -> list[str]:
    """Gives the drop-ins of a recorded unit that came after the backup."""
    known = recorded(manifest)
    found: list[str] = []
    for path in sorted(known):
        folder = path + FOLDER_SUFFIX
        if not path.endswith(".service") or not os.path.isdir(folder):
            continue
        for name in sorted(os.listdir(folder)):
            each = os.path.join(folder, name)
            if name.endswith(".conf") and name != HOLD and each not in known:
                found.append(each)
    return found


def words(rows: list[Json]) -> list[str]:
    """Gives a line for each step that changes a file."""
    verbs = {"file": "write", "absent": "remove"}
    return [f"{verbs[row['op']]} {row['path']}" for row in rows if row["op"] in verbs]


def bring_back(rows: list[Json], steps: Steps) -> None:
    """Do the steps, journalled; systemd is told of them. Raises NodeError, OSError."""
    wanted = [kinds.parse(row, f"files[{n}]") for n, row in enumerate(rows)]
    seen = Seen()
    for step in wanted:
        kinds.of(step).plan(step, seen)
    for step in wanted:
        kinds.of(step).do(step, steps)
    if any(row["path"].startswith(undo.SYSTEMD) for row in rows):
        systemctl("daemon-reload")
