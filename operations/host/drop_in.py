"""A drop-in of a systemd unit: written, replaced or taken away, as steps that node journals.

The steps say which unit the file is for, so that node checks the whole unit before it changes one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from operations.change.apply import Steps
from operations.change.steps import unit_step
from schema.observed.files import FileState
from schema.observed.units import Unit

MODE = "0644"


@dataclass(frozen=True)
class Target:
    """A drop-in as it is on one host: the unit, the file's path, the file, its folder."""

    unit: Unit
    path: str
    now: FileState
    folder: FileState


def write_steps(target: Target, text: str, restart: bool) -> Steps:
    """The steps that make the drop-in this text; none where it is so and systemd has read it.

    `restart`: whether the unit is to be started anew with it.
    """
    steps: Steps = []
    if target.folder.kind == "absent":
        path = target.path.rpartition("/")[0]
        steps.append({"op": "directory", "path": path, "mode": "0755"})
    if not _equal(target.now, text):
        steps.append(
            {
                "op": "file",
                "path": target.path,
                "content": text,
                "mode": MODE,
                "owner": "root",
                "group": "root",
                "expect_sha256": target.now.sha256 or "absent",
                "for_unit": target.unit.name,
            }
        )
    return _with_unit(steps, target, restart)


def remove_steps(target: Target, restart: bool) -> Steps:
    """The steps that take the drop-in away; none where there is none."""
    steps: Steps = []
    if target.now.kind == "file":
        steps.append(
            {
                "op": "absent",
                "path": target.path,
                "expect_sha256": target.now.sha256,
                "for_unit": target.unit.name,
            }
        )
    return _with_unit(steps, target, restart)


def _equal(now: FileState, text: str) -> bool:
    wanted = hashlib.sha256(text.encode()).hexdigest()
    return (now.sha256, now.mode, now.uid, now.gid) == (wanted, MODE, 0, 0)


def _with_unit(steps: Steps, target: Target, restart: bool) -> Steps:
    if not steps and not target.unit.needs_reload:
        return []
    return [*steps, unit_step(target.unit.name, "restart" if steps and restart else None)]
