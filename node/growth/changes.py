"""The journal's changes, and the pre-images that they name."""

from __future__ import annotations

import glob
import json
import os
import re
from functools import partial

from node.backup import listing
from node.change import journal
from node.core import proc
from node.core.errors import Json
from node.files import atomic, state_dir
from node.growth.item import Item, file_bytes
from node.vgpu import state as vgpu_state

# above it the oldest settled changes go, though there are fewer than the rule keeps: one run of a
# patch tool may keep 256 MiB
BLOBS_MOST = 2 << 30
_DIGEST = re.compile(r"[0-9a-f]{64}")
# a pre-image's digest, and the name by which a file of several names is kept
_KEPT = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{16})\b")
UNSETTLED = ("OPEN", "INCONSISTENT")


def known() -> list[Json]:
    """Gives the changes, newest first. Raises NodeError when the journal is damaged: nobody knows
    then what is needed."""
    changes, broken = journal.read_all()
    if broken:
        raise journal.broken_error(broken)
    return changes


def changes() -> list[Item]:
    """Gives the changes, newest first."""
    lasting = {row["change"] for row in listing.displaced()}
    counted: set[str] = set()
    total = settled = 0
    found: list[Item] = []
    for change in known():
        identifier = change["id"]
        named = set(_DIGEST.findall(json.dumps(change["steps"]))) - counted
        counted |= named
        total += sum(file_bytes(os.path.join(state_dir.blob_folder(), name)) for name in named)
        needed = ""
        if change["status"] in UNSETTLED:
            needed = f"it is {change['status']}"
        elif identifier in lasting:
            needed = "what it displaced is kept"
        else:
            settled += 1
        path = journal.path_of(identifier)
        found.append(Item(identifier, file_bytes(path), partial(os.unlink, path), needed,
                          over=settled > 1 and total > BLOBS_MOST))  # fmt: skip
    return found


def blobs() -> list[Item]:
    """Gives the kept copies, and the further names of replaced files that 0.2.0 kept.

    Those that no change and no settings file names may go.
    """
    texts = [json.dumps(change["steps"]) for change in known()]
    # what the library's guard puts back is named there
    for path in glob.glob(os.path.join(os.path.dirname(vgpu_state.path()), "*.json")):
        texts.append(proc.read_text(path))
    named = {word for text in texts for word in _KEPT.findall(text)}
    found: list[Item] = []
    for folder in (state_dir.blob_folder(), os.path.join(state_dir.root(), "linked")):
        for name in _listed(folder):
            path = os.path.join(folder, name)
            needed = "a change, or a settings file, names it" if name in named else ""
            if not name.startswith(atomic.TEMP_PREFIX):  # swept by whoever opens a change
                found.append(Item(name, file_bytes(path), partial(os.unlink, path), needed))
    return found


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
