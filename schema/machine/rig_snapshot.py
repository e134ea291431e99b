"""A rig as it was seen at one moment, in one file of the operator's machine; a twin starts from it.

No secret is in it: deploys/procedures/report/snapshot.py masks each text before it is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from schema.core.base import Frozen
from schema.observed.former import Former
from schema.observed.hardware import HardwareFacts
from schema.observed.kernel import KernelFacts
from schema.observed.snapshot import NodeSnapshot, Unreadable

# The folder in the project's root, which git ignores; the variable names another one, for tests.
FOLDER = "snapshots"
VARIABLE = "RIGBOOK_SNAPSHOTS"


class KeptText(Frozen):
    """A file of a host that decides what starts there: a unit, a drop-in, GRUB's defaults."""

    path: str
    text: str


class KeptUser(Frozen):
    """A user who logs in or runs a unit; nothing of a person's name or password."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str


class KeptNode(Frozen):
    """One node. `texts` are the units and drop-ins that `seen` names, and GRUB's defaults."""

    seen: NodeSnapshot
    kernel: KernelFacts | Unreadable
    hardware: HardwareFacts | Unreadable
    former: Former | Unreadable
    texts: tuple[KeptText, ...] | Unreadable
    users: tuple[KeptUser, ...] | Unreadable


class RigSnapshot(Frozen):
    """All nodes of a rig by name; `recipe` and `profile` are what it was to serve."""

    format: Literal[1]
    rig: str
    recipe: str
    profile: str
    taken_unix_s: float
    nodes: dict[str, KeptNode | Unreadable]


def place(root: Path, rig: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the snapshot of a rig is kept, below the project's root."""
    return Path(environ.get(VARIABLE) or root / FOLDER) / f"{rig}.json"
