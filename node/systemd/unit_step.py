"""The unit step of a change: what systemd says before, what to do, how to go back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from node.core.errors import Json, NodeError
from node.core.run import TimedOut, run

# a stop may take TimeoutStopSec (90 s) twice: TERM, then KILL
TIMEOUT_S = 200.0
# systemd takes a moment to begin; what it waits for (docker, the network) may take longer
BEGIN_S = 20.0
POLL_S = 0.2
_ON = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")
_RUNNING = ("active", "reloading")
DOWN = ("inactive", "failed")
_BEGINNING = "ActiveState,InvocationID,Job,Result"


def systemctl(*words: str) -> str:
    """Run systemctl; gives its output. Raises NodeError with its last line."""
    try:
        done = run(["systemctl", "--no-ask-password", *words], TIMEOUT_S)
    except FileNotFoundError:
        raise NodeError("systemctl not found", "unit_failed") from None
    except TimedOut as error:
        raise NodeError(f"systemctl {' '.join(words)}: {error}", "unit_failed") from None
    if done.rc != 0:
        remedy = f"journalctl -u {words[-1]} -n 40" if len(words) > 1 else ""
        raise NodeError(
            f"systemctl {' '.join(words)}: {done.last_line()}"[:500], "unit_failed", remedy
        )
    return done.out


def _show(name: str, properties: str) -> dict[str, str]:
    """Gives properties of a unit by name."""
    out = systemctl("show", "-p", properties, "--", name)
    return {key: value for key, _, value in (line.partition("=") for line in out.splitlines())}


def look(name: str) -> Json:
    """Gives load state, enabled state, active state and whether systemd must reload."""
    seen = _show(name, "LoadState,UnitFileState,ActiveState,NeedDaemonReload")
    return {
        "load": seen.get("LoadState", ""),
        "enabled": seen.get("UnitFileState", ""),
        "active": seen.get("ActiveState", ""),
        "needs_reload": seen.get("NeedDaemonReload") == "yes",
    }


def is_running(seen: Json) -> bool:
    """Gives True when the unit runs, or is being restarted again and again."""
    return seen["active"] in (*_RUNNING, "activating")


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
    if wanted == "restart" or (wanted == "start" and seen["active"] not in _RUNNING):
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
    seen = look(step["unit"])
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


def begin(verb: str, name: str) -> None:
    """Start or restart a unit and wait until it has begun, not until it is up.

    An engine's start lasts until its first answer: whoever asked waits for that, with progress.
    Raises NodeError (`unit_failed`) when the start failed or has not begun in its time; a stop
    that a restart begins with may take as long as any stop.
    """
    forget_failures(name)
    before = _show(name, _BEGINNING)
    systemctl(verb, "--no-block", name)
    deadline = time.monotonic() + BEGIN_S
    limit = time.monotonic() + TIMEOUT_S
    while True:
        now = _show(name, _BEGINNING)
        new = now.get("InvocationID") != before.get("InvocationID")
        state = now.get("ActiveState", "")
        if state == "failed":
            raise _not_begun(verb, name, f"it failed ({now.get('Result')})")
        if state in (*_RUNNING, "activating") and (new or verb == "start"):
            return
        if state == "inactive" and now.get("Job", "") in ("", "0"):
            if new:
                return  # a oneshot that is done already
            raise _not_begun(verb, name, "systemd did not begin: what it requires failed")
        stopping = state == "deactivating" or (verb == "restart" and not new)
        if time.monotonic() > (limit if stopping else deadline):
            raise _not_begun(verb, name, f"it is {state} and has not begun")
        time.sleep(POLL_S)


def _not_begun(verb: str, name: str, why: str) -> NodeError:
    return NodeError(
        f"systemctl {verb} {name}: {why}", "unit_failed", f"journalctl -u {name} -n 40"
    )


def forget_failures(name: str) -> None:
    """Clear the unit's start counter: a start that a person asked for is not part of a loop.

    StartLimitBurst counts those as well (systemd.unit(5)); a unit that systemd has not loaded has
    no counter, and then there is nothing to clear.
    """
    with contextlib.suppress(NodeError):
        systemctl("reset-failed", name)


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
    now = look(name)
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
    now = look(name)
    if pre["enabled"] in ("enabled", "enabled-runtime") and now["enabled"] not in _ON:
        runtime = ["--runtime"] if pre["enabled"] == "enabled-runtime" else []
        ran.append(f"enable {name}")
        systemctl("enable", *runtime, name)
    if start and is_running(pre) and now["active"] not in _RUNNING:
        ran.append(f"start {name}")
        begin("start", name)
    return ran
