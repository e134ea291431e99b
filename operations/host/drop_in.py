"""A drop-in of a systemd unit: written, replaced or taken away, as steps that node journals.

The steps say which unit the file is for, so that node checks the whole unit before it changes one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change import diff
from operations.change.run import Run
from operations.engine.engine import Steps
from schema.observed.snapshot import FileState, Unit

# The check of the unit, then a stop (TERM, KILL) and the begin of a start.
APPLY_TIMEOUT_S = 300
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
    unit: dict[str, object] = {
        "op": "unit",
        "unit": target.unit.name,
        "enabled": None,
        "active": "restart" if steps and restart else None,
        "daemon_reload": True,
    }
    return [*steps, unit]


def describe(step: Mapping[str, object]) -> str:
    """A step in words."""
    if step["op"] == "directory":
        return f"make the folder {step['path']}"
    if step["op"] == "file":
        return f"write {step['path']} (mode {step['mode']}, owner root)"
    if step["op"] == "absent":
        return f"remove {step['path']}"
    anew = f", then restart {step['unit']}" if step["active"] else ""
    return f"have systemd read its units again{anew}"


@operation()
def drop_in(
    run: Run, steps: Steps, members: Collection[str], now: FileState | None
) -> Generator[FunctionCommand, None, None]:
    """
    Write a drop-in of a unit or take it away, as one journalled change.

    + run: the change
    + steps: what to do here, from `write_steps` or `remove_steps`
    + members: the nodes on which something is to do
    + now: what the drop-in is now, for the diff
    """
    if not steps:
        host.noop("the drop-in is as it should be, or the unit is not here")
        return
    for step in steps:
        run.show_once(host, describe(step), lambda step=step: _show(run, step, now))
    node = host.name
    yield run.step("drop-in", members, lambda: run.apply(node, steps, APPLY_TIMEOUT_S))


def _show(run: Run, step: Mapping[str, object], now: FileState | None) -> None:
    host.log(describe(step))
    if step["op"] in ("file", "absent") and run.state.config.DIFF:
        after = str(step["content"]) if step["op"] == "file" else None
        diff.show(host, str(step["path"]), now.content if now else None, after)
