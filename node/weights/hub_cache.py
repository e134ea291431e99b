"""The layout of a Hugging Face cache: models--ORG--NAME with blobs, refs and snapshots/REVISION.

A snapshot's files are links into ../../blobs; refs/main names the revision that the hub's client
takes for a model without one (huggingface_hub, "Understand caching").
"""

from __future__ import annotations

import os
import re

_MODEL = "models--"
_REVISION = re.compile(r"^[0-9A-Za-z][0-9A-Za-z._-]{0,127}$")
_MAX_REF = 256


def root_of(path: str) -> str | None:
    """Gives the folder of a model in a cache, where `path` is a snapshot of it, whose links lead to
    its blobs."""
    model, snapshots = os.path.split(os.path.dirname(path))
    is_cache = snapshots == "snapshots" and os.path.basename(model).startswith(_MODEL)
    return model if is_cache and os.path.isdir(os.path.join(model, "blobs")) else None


def snapshot_of(path: str) -> str:
    """Gives the snapshot that a model's folder in a cache stands for: refs/main's, or the only one.

    Any other path, and a folder without one, is given as it is.
    """
    snapshots = os.path.join(path, "snapshots")
    if not os.path.basename(path).startswith(_MODEL) or not os.path.isdir(snapshots):
        return path
    try:
        with open(os.path.join(path, "refs", "main"), encoding="ascii") as file:
            named = file.read(_MAX_REF).strip()
    except (OSError, ValueError):
        there = sorted(os.listdir(snapshots))
        named = there[0] if len(there) == 1 else ""
    found = os.path.join(snapshots, named)
    return found if _REVISION.match(named) and os.path.isdir(found) else path
