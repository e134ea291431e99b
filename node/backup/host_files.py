"""The host's own files that a backup recorded beside its tree: the unit, its drop-ins, its launch.

A restore brings them back with the tree: an old engine under a unit and flags of a newer one does
not start. Each is a journalled step, so undo gives back what lay there.
"""

from __future__ import annotations

import base64
import contextlib
import grp
import os
import pwd

from node.backup import kept_files
from node.change import kinds, undo
from node.core.errors import Json
from node.core.step_kind import Seen, Steps
from node.core.systemctl import systemctl
from node.systemd.hold import FILE as HOLD
from node.systemd.unit_files import FOLDER_SUFFIX

Found = kept_files.Found


def differing(found: Found) -> list[Json]:
    """Gives the steps that bring the recorded files back; none when they are as recorded.

    A drop-in of a recorded unit that was not there at the time goes.
    """
    steps: list[Json] = []
    for path, kept in sorted(found.items()):
        if kept is None:
            continue
        now = kept_files.read(path)
        if now and now.row() == kept.row():
            continue
        folder = os.path.dirname(path)
        if not os.path.isdir(folder) and os.path.isdir(os.path.dirname(folder)):
            row: Json = {"op": "directory", "path": folder, "mode": "0755"}
            steps += [] if row in steps else [row]
        content = base64.b64encode(kept.raw).decode("ascii")
        steps.append({"op": "file", "path": path, "mode": f"{kept.mode:04o}",
                      "content_base64": content, **_owner(kept)})  # fmt: skip
    return steps + [{"op": "absent", "path": path} for path in _added(found)]


def _owner(kept: kept_files.Kept) -> Json:
    """Gives the names of a file's owners; one whom this host does not know leaves it to root."""
    named: Json = {}
    with contextlib.suppress(KeyError):
        named["owner"] = pwd.getpwuid(kept.uid).pw_name
        named["group"] = grp.getgrgid(kept.gid).gr_name
    return named


def _added(known: Found) -> list[str]:
    """Gives the drop-ins of a recorded unit that came after the backup."""
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
