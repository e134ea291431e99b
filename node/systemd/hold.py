"""Hold a unit while orphans are ended: stopped, and no start of it passes. Undone afterwards.

A drop-in under /run holds it: `mask --runtime` has no effect on a unit file in /etc (systemctl(1)),
and enabled and masked state stay untouched. The assertion names the drop-in itself, so removing
the file lifts the hold at once, and a reboot lifts it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from node.change import file_step, undo
from node.core import systemctl
from node.core.errors import Json
from node.core.systemctl import BOOTED

RUNTIME = "/run/systemd/system"
FILE = "99-rigbook-hold.conf"
_CONTENT = """\
# Made by rigbook: it holds this unit while processes that nobody owns are ended.
# `rignode undo` takes it away, and so does a reboot.
[Unit]
AssertPathExists=!{path}
[Service]
Restart=no
"""
Record = Callable[[], None]


def _paths(name: str) -> list[str]:
    """Gives the folder and the file that hold a unit."""
    folder = os.path.join(RUNTIME, f"{name}.d")
    return [folder, os.path.join(folder, FILE)]


def hold(name: str, records: list[Json], record: Record) -> Json:
    """Stop and hold a unit; gives {"unit", "held", "before", "why"}.

    Its state before and each step are journalled first. Raises NodeError when it does not stop.
    """
    answer: Json = {"unit": name, "held": False, "before": None, "restored": None}
    if not os.path.isdir(BOOTED):
        return {**answer, "why": "systemd does not run here"}
    seen = systemctl.inspect_unit(name)
    answer["before"] = {key: seen[key] for key in ("load", "enabled", "active")}
    if seen["load"] == "not-found":
        return {**answer, "why": "there is no such unit"}
    entry = {"op": "unit", "unit": name, "state": "intent", "enabled": None, "active": "stop",
             "pre": seen, "hold": True}  # fmt: skip
    records.append(entry)
    record()
    folder, path = _paths(name)
    rows = [
        {"op": "directory", "path": folder, "mode": "0755"},
        {"op": "file", "path": path, "mode": "0644", "content": _CONTENT.format(path=path)},
    ]
    for n, row in enumerate(rows):
        file_step.do(file_step.checked(row, f"hold[{n}]"), records, record)
    systemctl.systemctl("daemon-reload")
    systemctl.systemctl("stop", name)
    entry["state"] = "done"
    record()
    return {**answer, "held": True, "why": "stopped, and starts are refused meanwhile"}


def held(name: str, records: list[Json]) -> list[Json]:
    """Gives the steps of a hold that is not lifted yet, oldest first."""
    paths = _paths(name)
    return [
        row
        for row in records
        if row["state"] != "undone"
        and (row.get("path") in paths or (row.get("hold") and row["unit"] == name))
    ]


def release(name: str, records: list[Json], record: Record, start: bool) -> str:
    """Lift a hold, also of a run that was killed; gives what was done in words, "" for nothing.

    With `start` a unit that ran before is started (not waited for); without it, its step stays
    in the journal as done, so that undo starts it.
    """
    rows = held(name, records)
    if not rows:
        return ""
    for row in reversed([row for row in rows if row["op"] != "unit"]):
        undo.revert(row, overwrite=True)
        row["state"] = "undone"
        record()
    systemctl.systemctl("daemon-reload")
    units = [row for row in rows if row["op"] == "unit"]
    # a second run finds it stopped: only the oldest step knows what was before
    was_running = any(systemctl.is_running(row["pre"]) for row in units[:1])
    said = "the hold is lifted"
    if was_running and not start:
        for row in units:
            row["state"] = "done"
        record()
        return f"{said}; {name} ran before and is left stopped"
    if was_running and not systemctl.is_running(systemctl.inspect_unit(name)):
        systemctl.begin("start", name)
        said += f"; {name} is starting again, as before"
    for row in units:
        row["state"] = "undone"
    record()
    return said
