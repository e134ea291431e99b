"""systemd's own words: run systemctl, inspect a unit, begin a start."""

from __future__ import annotations

import contextlib
import shlex
import time

from node.core.errors import Json, NodeError
from node.core.run import TimedOut, run

BOOTED = "/run/systemd/system"  # there only when systemd is the init: sd_booted(3)
# the drop-in that holds a stopped unit (node/change/unit_step.py)
HOLD = "99-rigbook-hold.conf"
# a stop may take TimeoutStopSec (90 s) twice: TERM, then KILL
TIMEOUT_S = 200.0
# systemd takes a moment to begin what it has taken out of its queue
BEGIN_S = 20.0
# a queued start waits for the units before it: at boot network-online.target may take 120 s
QUEUED_S = 150.0
POLL_S = 0.2
RUNNING = ("active", "reloading")
DOWN = ("inactive", "failed")
# how long a unit may take to be down: TERM, then KILL, and what removes its container
SETTLE_S = 150.0
_STATES = "LoadState,UnitFileState,ActiveState,NeedDaemonReload"
# what a job of these kinds ends in, whatever its unit passes through (`systemctl list-jobs`)
_STARTS = ("start", "restart")
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
        remedy = f"journalctl -u {shlex.quote(words[-1])} -n 40" if len(words) > 1 else ""
        raise NodeError(
            f"systemctl {' '.join(words)}: {done.last_line()}"[:500], "unit_failed", remedy
        )
    return done.out


def _show(name: str, properties: str) -> dict[str, str]:
    """Gives properties of a unit by name."""
    out = systemctl("show", "-p", properties, "--", name)
    return {key: value for key, _, value in (line.partition("=") for line in out.splitlines())}


def inspect_unit(name: str) -> Json:
    """Gives load state, enabled state, active state and whether systemd must reload."""
    return _inspected(_show(name, _STATES))


def may_have_ended(name: str) -> bool:
    """Gives whether a unit's start may be its whole run: that it does not run says nothing then."""
    seen = _show(name, "Type,Restart,ActiveState,Result")
    ended = seen.get("ActiveState") == "inactive" and seen.get("Result") == "success"
    return seen.get("Type") == "oneshot" or (ended and seen.get("Restart") in ("no", "on-failure"))


def _inspected(seen: dict[str, str]) -> Json:
    return {
        "load": seen.get("LoadState", ""),
        "enabled": seen.get("UnitFileState", ""),
        "active": seen.get("ActiveState", ""),
        "needs_reload": seen.get("NeedDaemonReload") == "yes",
    }


def settled(name: str) -> Json:
    """Gives the same of a unit that is not on its way down: a restart that is under way counts as
    a start (`activating`), whatever it passes through; a stop is waited for.

    Raises NodeError (`unit_failed`) when it does not settle in its time: nothing was done then.
    """
    began = time.monotonic()
    while True:
        shown = _show(name, f"{_STATES},Job")
        seen = _inspected(shown)
        has_job = shown.get("Job", "") not in ("", "0")
        job = _job(name) if has_job and seen["active"] not in RUNNING else None
        if job in _STARTS:
            return {**seen, "active": "activating"}
        # a job that was over by then has left another state than the one that was shown
        if seen["active"] != "deactivating" and not (has_job and seen["active"] in DOWN):
            return seen
        if time.monotonic() - began > SETTLE_S:
            raise NodeError(
                f"{name} is still {seen['active']} after {time.monotonic() - began:.0f} s; nothing"
                " was done",
                "unit_failed",
                f"systemctl status {shlex.quote(name)}",
            )
        time.sleep(POLL_S)


def _job(name: str) -> str | None:
    """Gives the kind of a unit's job (start, stop, restart), None when there is none any more."""
    rows = (line.split() for line in systemctl("list-jobs", "--no-legend", name).splitlines())
    return next((row[2] for row in rows if len(row) > 2 and row[1] == name), None)


def goal(seen: Json) -> Json:
    """Gives what a unit is on its way to: a passing state is none that anybody goes back to."""
    return {**seen, "active": "active"} if is_running(seen) else seen


def is_running(seen: Json) -> bool:
    """Gives True when the unit runs, or is being restarted again and again."""
    return seen["active"] in (*RUNNING, "activating")


def begin(verb: str, name: str) -> None:
    """Start or restart a unit and wait until it has begun, not until it is up.

    An engine's start lasts until its first answer: whoever asked waits for that, with progress.
    Raises NodeError (`unit_failed`) when the start failed or has not begun in its time; a stop
    that a restart begins with may take as long as any stop.
    """
    forget_failures(name)
    before = _show(name, _BEGINNING)
    systemctl(verb, "--no-block", name)
    started = time.monotonic()
    while True:
        now = _show(name, _BEGINNING)
        new = now.get("InvocationID") != before.get("InvocationID")
        state = now.get("ActiveState", "")
        if state == "failed":
            raise _not_begun(verb, name, f"it failed ({now.get('Result')})")
        if state in (*RUNNING, "activating") and (new or verb == "start"):
            return
        queued = now.get("Job", "") not in ("", "0")
        if state == "inactive" and not queued:
            if new:
                return  # a oneshot that is done already
            raise _not_begun(verb, name, "systemd did not begin: what it requires failed")
        stopping = state == "deactivating" or (verb == "restart" and not new)
        limit = TIMEOUT_S if stopping else QUEUED_S if queued else BEGIN_S
        if time.monotonic() > started + limit:
            raise _not_begun(verb, name, f"it is {state} and has not begun{_waits_behind(queued)}")
        time.sleep(POLL_S)


def _waits_behind(queued: bool) -> str:
    """Gives which units' jobs run now, in words; "" for a unit that waits for none."""
    if not queued:
        return ""
    rows = [line.split() for line in systemctl("list-jobs", "--no-legend", "--plain").splitlines()]
    names = [row[1] for row in rows if len(row) == 4 and row[3] == "running"]
    return f": it waits behind {', '.join(names) or 'no running job'}"


def _not_begun(verb: str, name: str, why: str) -> NodeError:
    return NodeError(
        f"systemctl {verb} {name}: {why}", "unit_failed", f"journalctl -u {shlex.quote(name)} -n 40"
    )


def end(name: str) -> None:
    """Stop a unit; what its stop leaves as `failed` is none: it was asked for.

    A stop while ExecStartPost waits for an answer ends that with a signal, and the unit failed.
    """
    systemctl("stop", name)
    if _show(name, _STATES).get("ActiveState") == "failed":
        forget_failures(name)


def forget_failures(name: str) -> None:
    """Clear the unit's start counter: a start that a person asked for is not part of a loop.

    StartLimitBurst counts those as well (systemd.unit(5)); a unit that systemd has not loaded has
    no counter, and then there is nothing to clear.
    """
    with contextlib.suppress(NodeError):
        systemctl("reset-failed", name)
