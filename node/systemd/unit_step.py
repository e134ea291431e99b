"""The unit step of a change: what systemd says before, what to do, how to go back."""

from __future__ import annotations

from collections.abc import Callable

from node.core.errors import Json, NodeError
from node.core.systemctl import (
    DOWN,
    RUNNING,
    begin,
    inspect_unit,
    is_running,
    systemctl,
)

_ON = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")


def actions(step: Json, seen: Json, changed_before: bool) -> list[list[str]]:
    """Gives the systemctl commands that the step needs, in order; none when all is as wanted.

    `changed_before`: an earlier step of the same apply changed something.
    """
    todo: list[list[str]] = []
    # again when its file has changed: a new [Install] may ask for further links
    if step["enabled"] is True and (changed_before or seen["enabled"] not in _ON):
        todo.append(["enable", step["unit"]])
    if step["enabled"] is False and seen["enabled"] in ("enabled", "enabled-runtime"):
        todo.append(["disable", step["unit"]])
    wanted = step["active"]
    if wanted == "restart" or (wanted == "start" and seen["active"] not in RUNNING):
        todo.append([wanted, step["unit"]])
    if wanted == "stop" and seen["active"] not in DOWN:
        todo.append(["stop", step["unit"]])
    if step["daemon_reload"] and (todo or changed_before or seen["needs_reload"]):
        todo.insert(0, ["daemon-reload"])
    return todo


def do(
    step: Json, changed_before: bool, records: list[Json], record: Callable[[], None]
) -> list[str]:
    """Do one unit step; gives the systemctl commands it ran.

    What systemd said before is appended to `records` and written by `record` before the first.
    """
    seen = inspect_unit(step["unit"])
    todo = actions(step, seen, changed_before)
    if not todo:
        return []
    entry = {
        "op": "unit",
        "unit": step["unit"],
        "state": "intent",
        "enabled": step["enabled"],
        "active": step["active"],
        "pre": seen,
    }
    records.append(entry)
    record()
    try:
        for words in todo:
            if words[0] in ("start", "restart"):
                begin(words[0], step["unit"])
            else:
                systemctl(*words)
    except NodeError as error:
        entry.update(state="failed", error=str(error))
        record()
        raise
    entry["state"] = "done"
    record()
    return [" ".join(words) for words in todo]


def replaced(step: Json) -> bool:
    """Gives True when a recorded step made the unit run something else than before."""
    return bool(
        step["active"] == "restart" or (step["active"] == "start" and not is_running(step["pre"]))
    )


def quiesce(name: str, pre: Json, was_replaced: bool) -> list[str]:
    """Stop and disable what did not run or was not enabled before; gives the commands run.

    It comes before the files are restored: a unit whose file is gone cannot be disabled.
    """
    ran: list[str] = []
    now = inspect_unit(name)
    if now["active"] not in DOWN and (was_replaced or not is_running(pre)):
        ran.append(f"stop {name}")
        systemctl("stop", name)
    if now["enabled"] in ("enabled", "enabled-runtime") and pre["enabled"] not in _ON:
        ran.append(f"disable {name}")
        systemctl("disable", name)
    return ran


def resume(name: str, pre: Json, start: bool) -> list[str]:
    """Enable and, when `start`, start what was before; gives the commands run."""
    ran: list[str] = []
    now = inspect_unit(name)
    if pre["enabled"] in ("enabled", "enabled-runtime") and now["enabled"] not in _ON:
        runtime = ["--runtime"] if pre["enabled"] == "enabled-runtime" else []
        ran.append(f"enable {name}")
        systemctl("enable", *runtime, name)
    if start and is_running(pre) and now["active"] not in RUNNING:
        ran.append(f"start {name}")
        begin("start", name)
    return ran
