"""Which versions of the program must stay: what still names one, by its path."""

from __future__ import annotations

import glob
import json
import os
import re

from node.change import journal, kinds
from node.core.errors import Json
from node.core.version import LINK, NAME
from node.files import state_dir

# where units lie that the next boot, or the next start, may run
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system")
_PROGRAM = re.compile(rf"/[^\s\"'=]*/{NAME.pattern}".encode())


def _read(path: str) -> bytes:
    """Gives a file's bytes; none where it is gone, or is a link that leads nowhere."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _unit_files() -> list[str]:
    """Gives the unit files and drop-ins of this host's own."""
    found: list[str] = []
    for folder in UNIT_FOLDERS:
        found += glob.glob(f"{folder}/*.*") + glob.glob(f"{folder}/*.d/*.conf")
    return sorted(path for path in found if not os.path.isdir(path))


def _undoable(change: Json) -> bytes:
    """Gives a change's text, and the pre-images that its undo would put back.

    The program that wrote a blessed one is left out where this one knows its steps.
    """
    known = all(step["op"] in kinds.KINDS for step in change["steps"])
    shown = {**change, "program": None} if change["status"] == "COMMITTED" and known else change
    raw = json.dumps(shown).encode()
    for step in change["steps"]:
        pre = step.get("pre")
        if isinstance(pre, dict) and "sha256" in pre:
            raw += _read(os.path.join(state_dir.blob_folder(), pre["sha256"]))
    return raw


def named() -> dict[str, list[str]]:
    """Gives the path of each program that is named, with who names it: the link, unit files,
    changes that can still be undone (pre-images included), backups (by their manifests).

    Reads only. Raises NodeError for a damaged journal, OSError for what cannot be read: nothing
    may be removed then.
    """
    changes, broken = journal.read_all()
    if broken:
        raise journal.broken_error(broken)
    texts = {path: _read(path) for path in _unit_files()}
    manifests = glob.glob(f"{state_dir.root()}/backups/*/manifest.json")
    texts.update({path: _read(path) for path in manifests})
    texts.update({f"change {row['id']}": _undoable(row)
                  for row in changes if row["status"] != "ROLLED_BACK"})  # fmt: skip
    if os.path.islink(LINK):
        texts[LINK] = os.readlink(LINK).encode()
    found: dict[str, list[str]] = {}
    for who, raw in texts.items():
        for program in sorted(set(_PROGRAM.findall(raw))):
            found.setdefault(program.decode(), []).append(who)
    return found
