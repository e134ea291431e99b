"""The text for a person at the console: lock, changes, units, and how to go back."""

from __future__ import annotations

import shlex
import time

from node.change import journal, look
from node.core import systemctl
from node.core.errors import Json, NodeError
from node.core.step_kind import PRE
from node.core.version import installed_version


def _date(unix_s: float) -> str:
    """Gives a local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def collect() -> Json:
    """Gives the journal's view and the state of the units that its last changes touched."""
    seen: Json = journal.summary_section()
    names: set[str] = set()
    for change in journal.read_all()[0][:20]:
        names.update(row["unit"] for row in change["steps"] if "unit" in row)
    units: list[Json] = []
    for name in sorted(names):
        try:
            units.append({"unit": name, **systemctl.inspect_unit(name)})
        except NodeError as error:
            units.append({"unit": name, "error": str(error)})
    return {**seen, "units": units, "version": installed_version()}


def lines(seen: Json) -> list[str]:
    """Gives the status as lines of text."""
    out = [f"rignode {seen['version'] or '(not installed)'}"]
    out.append(f"lock: held by {seen['lock_holder']}" if seen["lock_held"] else "lock: free")
    for path in seen["broken"]:
        out.append(f"DAMAGED journal file: {path}")
    for row in seen["units"]:
        if "error" in row:
            out.append(f"unit {row['unit']}: {row['error']}")
        else:
            enabled = row["enabled"] or row["load"]
            out.append(f"unit {row['unit']}: {row['active']}, {enabled}")
    if not seen["changes"]:
        out.append("no changes")
    for change in seen["changes"]:
        out += _change_lines(change)
    if any(change["status"] in ("OPEN", "INCONSISTENT") for change in seen["changes"]):
        out.append("to go back: rignode undo")
    return out


def verify(change_id: str | None) -> Json:
    """Gives in what the host is not as the journal says of a change; None: the last one.

    Reads only. Raises NodeError when there is no such change, and for one of another version.
    """
    changes = journal.read_all()[0] if change_id is None else [journal.get(change_id)]
    if not changes:
        raise NodeError("the journal has no change to look at", "no_change")
    change = next((row for row in changes if row["status"] == "OPEN"), changes[0])
    side = look.side_of(change)
    return {"change": change["id"], "status": change["status"], "steps": len(change["steps"]),
            "side": side, "lines": look.of_change(change)}  # fmt: skip


def verify_lines(seen: Json) -> list[str]:
    """Gives what `verify` found, as lines of text. Raises NodeError with them when it differs."""
    what = f"{seen['change']} ({seen['status']}, {seen['steps']} steps)"
    side = "found" if seen["side"] == PRE else "left"
    if not seen["lines"]:
        return [f"verify {what}: all is as it {side} it"]
    error = NodeError(
        f"{what}: not as it {side} it: {'; '.join(seen['lines'])}",
        "not_as_recorded",
        "put it back by hand"
        if seen["status"] == "ROLLED_BACK"
        else f"look at each; to go back to what was before: rignode undo {seen['change']}",
    )
    error.spoken = True
    raise error


def _change_lines(change: Json) -> list[str]:
    """Gives one change as lines; the steps only while it is not settled."""
    head = f"{change['status']} {change['id']}  {change['deploy']} by {change['operator']}"
    out = [f"{head}, {_date(change['opened_unix_s'])}"]
    if change["reason"]:
        out.append(f"    reason: {change['reason']}")
    if change["status"] in ("OPEN", "INCONSISTENT"):
        lease = change.get("lease")
        if lease and change["status"] == "OPEN":
            far = f", {lease['phase']}" if "phase" in lease else ""
            out.append(f"    lease: {lease['seconds']:g} s{far}; journalctl -u rigbook-lease")
        out += [f"    {step}" for step in change["steps"]]
    return out


def undo_lines(answer: Json) -> list[str]:
    """Gives what an undo did, as lines of text."""
    if not answer["changed"]:
        return [answer["detail"]]
    out = [f"undone: {answer['change']} is {answer['status']}"]
    for row in answer["steps"]:
        about = row.get("path") or row.get("unit") or row.get("image") or row["op"]
        out.append(f"    {about}: {row['detail']}")
    return out + [f"to start: {_start(name)}" for name in answer["to_start"]]


def _start(name: str) -> str:
    return f"systemctl start {shlex.quote(name)}" if "." in name else name
