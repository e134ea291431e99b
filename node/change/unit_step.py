"""The unit step of a change: what systemd says before, what to do, how to go back."""

from __future__ import annotations

import contextlib
import os

from node.change.journal import DONE, UNDONE, UNKNOWN
from node.change.kinds import POST, PRE, UNIT, Kind, Seen, Steps, differing
from node.core import systemctl, validate
from node.core.errors import Json, NodeError

_SETTABLE = {"enabled", "enabled-runtime", "disabled"}
_ON = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")
_ENABLED = ("enabled", "enabled-runtime")


def actions(step: Json, seen: Json, changed_before: bool) -> list[list[str]]:
    """Gives the systemctl commands that the step needs, in order; none when all is as wanted.

    `changed_before`: an earlier step of the same apply changed something.
    """
    todo: list[list[str]] = []
    # again when its file has changed: a new [Install] may ask for further links
    if step["enabled"] is True and (changed_before or seen["enabled"] not in _ON):
        todo.append(["enable", step["unit"]])
    if step["enabled"] is False and seen["enabled"] in _ENABLED:
        todo.append(["disable", step["unit"]])
    wanted = step["active"]
    if wanted == "restart" or (wanted == "start" and seen["active"] not in systemctl.RUNNING):
        todo.append([wanted, step["unit"]])
    if wanted == "stop" and seen["active"] not in systemctl.DOWN:
        todo.append(["stop", step["unit"]])
    if step["daemon_reload"] and (todo or changed_before or seen["needs_reload"]):
        todo.insert(0, ["daemon-reload"])
    return todo


def _replaced(entry: Json) -> bool:
    """Gives True when a recorded step made the unit run something else than before."""
    started = entry["active"] == "start" and not systemctl.is_running(entry["pre"])
    return bool(entry["active"] == "restart" or started)


class UnitKind(Kind):
    """A unit enabled, disabled, started, restarted or stopped."""

    keys = ("unit", "enabled", "active", "daemon_reload")
    required = ("unit",)
    phase = UNIT
    # it was started or stopped: the caller looks, and undoes the change as a whole
    taken_back = False

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked."""
        enabled, active = step.get("enabled"), step.get("active")
        wants = ("start", "restart", "stop", None)
        reload = step.get("daemon_reload", False)
        return {
            "op": self.op,
            "unit": validate.unit(step["unit"], f"{where}.unit"),
            "enabled": validate.choice(enabled, f"{where}.enabled", (True, False, None)),
            "active": validate.choice(active, f"{where}.active", wants),
            "daemon_reload": validate.boolean(reload, f"{where}.daemon_reload"),
        }

    def describe(self, entry: Json) -> str:
        """Names the unit and what is wanted of it, such as "restart+enable"."""
        enabled = entry.get("enabled")
        wants = [
            entry.get("active"),
            None if enabled is None else "enable" if enabled else "disable",
        ]
        return f"{super().describe(entry)} {'+'.join(str(want) for want in wants if want)}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives the systemctl commands that the step needs."""
        todo = actions(step, systemctl.inspect_unit(step["unit"]), seen.changed_before)
        return bool(todo), ", ".join(" ".join(words) for words in todo)

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Run the commands that the step needs, with what systemd said before written first."""
        name = step["unit"]
        # a restart that somebody has begun may show as down for a moment: that is not what was
        seen = systemctl.settled(name)
        todo = actions(step, seen, steps.changed_before)
        if not todo:
            return False, "as wanted"
        wants = {key: step[key] for key in ("enabled", "active")}
        entry = self.record(steps, unit=name, **wants, pre=systemctl.goal(seen))
        try:
            for words in todo:
                if words[0] in ("start", "restart"):
                    systemctl.begin(words[0], name)
                elif words[0] == "stop":
                    systemctl.end(name)
                else:
                    systemctl.systemctl(*words)
        except NodeError as error:
            steps.finish(entry, "failed", error=str(error))
            raise
        steps.finish(entry)
        return True, ", ".join(" ".join(words) for words in todo)

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """A start or stop that was cut short is done where the unit is as asked; of a restart
        nothing tells whether it came to it."""
        seen = entry["active"] != "restart" and not self.verify(entry, POST)
        return DONE if seen else UNKNOWN

    def quiesce(self, rows: list[Json]) -> list[str]:
        """Stop and disable what did not run or was not enabled before the oldest step.

        It comes before the files are restored: a unit whose file is gone cannot be disabled.
        """
        name, pre = rows[-1]["unit"], rows[-1]["pre"]
        replaced = any(_replaced(row) for row in rows)
        ran: list[str] = []
        now = systemctl.inspect_unit(name)
        if now["active"] not in systemctl.DOWN and (replaced or not systemctl.is_running(pre)):
            ran.append(f"stop {name}")
            systemctl.end(name)
        persistent = now["enabled"] == "enabled" and pre["enabled"] == "enabled-runtime"
        if persistent or (now["enabled"] in _ENABLED and pre["enabled"] not in _ON):
            ran.append(f"disable {name}")
            systemctl.systemctl("disable", name)
        return ran

    def resume(self, rows: list[Json], start: bool) -> tuple[list[str], bool]:
        """Enable and, when `start`, start what was so before the oldest step."""
        name, pre = rows[-1]["unit"], rows[-1]["pre"]
        ran: list[str] = []
        now = systemctl.inspect_unit(name)
        ran_before = systemctl.is_running(pre)
        if pre["enabled"] in _ENABLED and now["enabled"] not in _ON:
            runtime = ["--runtime"] if pre["enabled"] == "enabled-runtime" else []
            ran.append(f"enable {name}")
            systemctl.systemctl("enable", *runtime, name)
        if start and ran_before and now["active"] not in systemctl.RUNNING:
            ran.append(f"start {name}")
            systemctl.begin("start", name)
        return ran, ran_before and not start

    def folded(self, rows: list[Json], side: str) -> Json:
        """Gives the first row, or what the last ones asked for, each of the two by itself."""
        asked = {key: next((row[key] for row in reversed(rows) if row[key] is not None), None)
                 for key in ("enabled", "active")}  # fmt: skip
        return rows[0] if side == PRE else {**rows[-1], **asked}

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives in what the unit is not as before; what a step left is what it asked for."""
        now, pre = systemctl.inspect_unit(entry["unit"]), entry["pre"]
        name, is_on = entry["unit"], now["enabled"] in _ON
        runs = systemctl.is_running(now)
        if side == PRE:
            # masked, static and none come of files, which are looked at by themselves; a step may
            # have recorded them after the change wrote its files
            known = {now["enabled"], pre["enabled"]} <= _SETTABLE
            lines = differing(f"{name} enabled", now["enabled"], pre["enabled"]) if known else []
            lines += differing(f"{name} running", runs, systemctl.is_running(pre))
            # else the drop-ins and files on the disk, looked at by themselves, are not in force
            return lines + differing(f"{name} needs_reload", now["needs_reload"], False)
        wanted = is_on if entry["enabled"] is None else entry["enabled"]
        to_run = runs if entry["active"] is None else entry["active"] != "stop"
        return differing(f"{name} enabled", is_on, wanted) + differing(f"{name} running", runs,
                                                                     to_run)  # fmt: skip


# Hold a stopped unit: no start of it passes until the hold is lifted.
#
# A drop-in under /run holds it: `mask --runtime` has no effect on a unit file in /etc
# (systemctl(1)),
# and enabled and masked state stay untouched. The assertion names the drop-in itself, so removing
# the file lifts the hold at once, and a reboot lifts it too. The change says that it holds before
# the file is there: whoever undoes it lifts it.

HOLD_FILE = systemctl.HOLD
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
    path = os.path.join(folder, HOLD_FILE)
    steps.change["held"] = [*(row for row in steps.change.get("held", []) if row != path), path]
    steps.write()
    os.makedirs(folder, mode=0o755, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o644), "w", encoding="ascii") as file:
        file.write(_CONTENT.format(path=path))
    systemctl.systemctl("daemon-reload")


def lift_hold(steps: Steps) -> bool:
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


def release_hold(name: str, steps: Steps, start: bool) -> str:
    """Lift a hold, also of a run that was killed; gives what was done in words, "" for nothing.

    With `start` a unit that ran before is started (not waited for); without it, its step stays
    in the journal as done, so that undo starts it.
    """
    units = [row for row in steps.rows
             if row.get("hold") and row["unit"] == name and row["state"] != UNDONE]  # fmt: skip
    if not lift_hold(steps) and not units:
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
