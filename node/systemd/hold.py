"""Hold a stopped unit: no start of it passes until the hold is lifted.

A drop-in under /run holds it: `mask --runtime` has no effect on a unit file in /etc (systemctl(1)),
and enabled and masked state stay untouched. The assertion names the drop-in itself, so removing
the file lifts the hold at once, and a reboot lifts it too. The change says that it holds before
the file is there: whoever undoes it lifts it.
"""

from __future__ import annotations

import contextlib
import os

from node.core import systemctl
from node.core.errors import Json
from node.core.step_kind import Steps
from node.core.step_state import DONE, UNDONE
from node.systemd.unit_step import UnitKind

FILE = systemctl.HOLD
_CONTENT = """\
# Made by rigbook: it holds this unit while orphans are ended or files go back.
# `rignode undo` takes it away, and so does a reboot.
[Unit]
AssertPathExists=!{path}
[Service]
Restart=no
"""


def hold(name: str, steps: Steps) -> None:
    """Refuse every start of a unit, told in the change first. Raises NodeError, OSError."""
    if not os.path.isdir(systemctl.BOOTED):
        return
    folder = os.path.join(systemctl.BOOTED, f"{name}.d")
    path = os.path.join(folder, FILE)
    steps.change["held"] = [*(row for row in steps.change.get("held", []) if row != path), path]
    steps.write()
    os.makedirs(folder, mode=0o755, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o644), "w", encoding="ascii") as file:
        file.write(_CONTENT.format(path=path))
    systemctl.systemctl("daemon-reload")


def lift(steps: Steps) -> bool:
    """Take a change's holds away, also of a run that was killed; gives whether there was one.

    The caller writes the change and reloads systemd; starts pass from here on, since the
    assertion names the file.
    """
    paths = steps.change.pop("held", [])
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(path))  # others may have drop-ins there
    return bool(paths)


def stop_and_hold(name: str, steps: Steps) -> Json:
    """Stop and hold a unit as a step; gives {"unit", "held", "before", "why"}.

    Its state before is journalled first. Raises NodeError when it does not stop.
    """
    answer: Json = {"unit": name, "held": False, "before": None, "restored": None}
    if not os.path.isdir(systemctl.BOOTED):
        return {**answer, "why": "systemd does not run here"}
    seen = systemctl.settled(name)
    answer["before"] = {key: seen[key] for key in ("load", "enabled", "active")}
    if seen["load"] == "not-found":
        return {**answer, "why": "there is no such unit"}
    entry = UnitKind("unit").record(
        steps, unit=name, enabled=None, active="stop", pre=systemctl.goal(seen), hold=True
    )
    hold(name, steps)
    systemctl.systemctl("stop", name)
    steps.finish(entry)
    return {**answer, "held": True, "why": "stopped, and starts are refused meanwhile"}


def release(name: str, steps: Steps, start: bool) -> str:
    """Lift a hold, also of a run that was killed; gives what was done in words, "" for nothing.

    With `start` a unit that ran before is started (not waited for); without it, its step stays
    in the journal as done, so that undo starts it.
    """
    units = [row for row in steps.rows
             if row.get("hold") and row["unit"] == name and row["state"] != UNDONE]  # fmt: skip
    if not lift(steps) and not units:
        return ""
    steps.write()
    systemctl.systemctl("daemon-reload")
    # a second run finds it stopped: only the oldest step knows what was before
    was_running = any(systemctl.is_running(row["pre"]) for row in units[:1])
    said = "the hold is lifted"
    if was_running and not start:
        for row in units:
            row["state"] = DONE
        steps.write()
        return f"{said}; {name} ran before and is left stopped"
    if was_running and not systemctl.is_running(systemctl.inspect_unit(name)):
        systemctl.begin("start", name)
        said += f"; {name} is starting again, as before"
    for row in units:
        row["state"] = UNDONE
    steps.write()
    return said
