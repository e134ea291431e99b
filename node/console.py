"""The verbs that a person types too: status, journal, undo, lock. They print text or give JSON."""

from __future__ import annotations

import os
import shlex
import sys
import time

from node.change import journal, kinds, transaction
from node.change.kinds import PRE
from node.core import errors, files, systemctl, validate
from node.core.errors import Json, NodeError, installed_version
from node.engine.start import EngineHold
from node.transfer import spool
from node.verbs import read_request, request_usage

# The text for a person at the console: lock, changes, units, and how to go back.


def _date(unix_s: float) -> str:
    """Gives a local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def collect_status() -> Json:
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


def status_lines(seen: Json) -> list[str]:
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


def verify_status(change_id: str | None) -> Json:
    """Gives in what the host is not as the journal says of a change; None: the last one.

    Reads only. Raises NodeError when there is no such change, and for one of another version.
    """
    changes = journal.read_all()[0] if change_id is None else [journal.get(change_id)]
    if not changes:
        raise NodeError("the journal has no change to look at", "no_change")
    change = next((row for row in changes if row["status"] == "OPEN"), changes[0])
    side = kinds.side_of(change)
    return {"change": change["id"], "status": change["status"], "steps": len(change["steps"]),
            "side": side, "lines": kinds.of_change(change)}  # fmt: skip


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


# `rignode progress`: how far the transfers of this host are, for a person at the console.


def console(args: list[str]) -> Json | None:
    """Prints a line for each transfer of this host."""
    if args:
        raise request_usage(f"unknown argument {args[0][:60]!r}")
    print("\n".join(spool.progress_lines()))
    return None


def _undo_request(args: list[str]) -> tuple[Json, bool]:
    """Gives the undo request of the console's form, and whether text was asked for.

    The form is: rignode undo [ID] [--overwrite PATH]... [--despite ID] [--no-start] [--text].
    """
    out: Json = {}
    words = list(args)
    as_text = False
    while words:
        word = words.pop(0)
        if word == "--text":
            as_text = True
        elif word == "--no-start":
            out["start_units"] = False
        elif word == "--overwrite" and words:
            out.setdefault("overwrite", []).append(os.path.abspath(words.pop(0)))
        elif word == "--despite" and words:
            out["despite"] = words.pop(0)
        elif word.startswith(("{", "-")) or "change" in out:
            raise request_usage(f"unknown argument {word[:60]!r}")
        else:
            out["change"] = word
    return out, as_text


def undo(args: list[str]) -> Json | None:
    """Undo; prints text for a person and gives None, else gives the answer."""
    if args and not args[0].startswith("{"):
        request, as_text = _undo_request(args)
        if not request:
            request = read_request([], console=True)
    else:
        request, as_text = read_request(args, console=True), False
    errors.catch_signals()
    as_text = as_text or (sys.stdout is not None and sys.stdout.isatty())
    if not as_text:
        return transaction.undo(request, EngineHold())
    try:
        print("\n".join(undo_lines(transaction.undo(request, EngineHold()))))
    except NodeError as error:
        error.spoken = True
        raise
    return None


def status(args: list[str]) -> Json | None:
    """Gives the status as JSON with --json, else prints it as text.

    With `--verify [ID]`: in what the host is not as the journal says of the last change, or that
    one; as text an error where it is not.
    """
    words = [word for word in args if word != "--json"]
    verifies = words[:1] == ["--verify"]
    if len(words) > 2 * verifies or any(word.startswith("-") for word in words[1:]):
        raise request_usage(f"unknown argument {words[-1][:60]!r}")
    as_json = "--json" in args
    if not verifies:
        seen = collect_status()
        lines = [] if as_json else status_lines(seen)
    else:
        named = validate.change_id(words[1]) if words[1:] else None
        seen = verify_status(named)
        lines = [] if as_json else verify_lines(seen)
    if as_json:
        return seen
    print("\n".join(lines))
    return None


def show_journal(args: list[str]) -> Json:
    """Gives all changes, or one whole."""
    body = validate.keys(read_request(args, console=True), "request", ("change",))
    if body.get("change") is not None:
        return {"change": journal.get(validate.change_id(body["change"]))}
    changes, broken = journal.read_all()
    return {"changes": changes, "broken": broken}


def lock(args: list[str]) -> Json:
    """Gives who holds the lock."""
    validate.keys(read_request(args, console=True), "request", ())
    is_held, who = files.host_lock()
    return {"held": is_held, "holder": who}
