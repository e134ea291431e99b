"""apply and close: a change is opened, its steps recorded and done, and it is closed."""

from __future__ import annotations

from typing import Any

from node.change import file_step, journal, undo
from node.change import kinds as change_kinds
from node.core import signals, systemctl, validate
from node.core.errors import Json, NodeError, io_reason
from node.files.host_lock import Lock
from node.kube import deployment_step
from node.systemd import dropin_check, unit_step

MAX_STEPS = 200


def _checked(request: Json) -> Json:
    """Gives an apply request with every value checked."""
    body = validate.keys(request, "request", ("change", "steps", "dry"), ("change", "steps"))
    rows = validate.array(body["steps"], "steps", MAX_STEPS)
    return {
        "change": journal.checked_change(body["change"]),
        "steps": [file_step.checked(row, f"steps[{n}]") for n, row in enumerate(rows)],
        "dry": validate.boolean(body.get("dry", False), "dry"),
    }


def _answer(step: Json, changed: bool, detail: str) -> Json:
    """Gives what became of one step."""
    about: Json = {key: step[key] for key in ("unit", "path") if key in step}
    return {"op": step["op"], **about, "changed": changed, "detail": detail}


def _dry(wanted: list[Json]) -> list[Json]:
    """Gives what each step would do; reads only."""
    answers: list[Json] = []
    planned = _planned(wanted)
    for n, step in enumerate(wanted):
        if step["op"] == "kube":
            planned[n] = deployment_step.dry(step)
        if step["op"] != "unit":
            changes = change_kinds.plan(step) if step["op"] in change_kinds.OPS else planned[n]
            answers.append(_answer(step, changes, "would change" if changes else "as wanted"))
            continue
        before = any(row["changed"] for row in answers)
        todo = unit_step.actions(step, systemctl.inspect_unit(step["unit"]), before)
        detail = ", ".join(" ".join(words) for words in todo)
        answers.append(_answer(step, bool(todo), detail or "as wanted"))
    return answers


def _planned(wanted: list[Json]) -> list[bool]:
    """Gives what steps.plan gives; the drop-ins that change are checked as one, before a step."""
    planned = file_step.plan(wanted)
    dropin_check.refuse([step for n, step in enumerate(wanted) if planned[n]])
    return planned


def opened(wanted: Json) -> Json:
    """Gives the change to append to, new or found OPEN. Raises NodeError when it must not be."""
    changes, broken = journal.read_all()
    if broken:
        raise journal.broken_error(broken)
    for other in changes:
        if other["status"] == "OPEN" and other["id"] != wanted["id"]:
            raise NodeError(
                f"another change is open: {other['id']} ({other['deploy']}, {other['operator']})",
                "change_open",
                f"finish it, or undo it with: rignode undo {other['id']}",
            )
    found = journal.find(wanted["id"])
    if found is None:
        return journal.open_change(wanted)
    if found["status"] != "OPEN":
        raise NodeError(f"change {found['id']} is {found['status']} already", "change_closed")
    if file_step.settle(found["steps"]):
        journal.save(found)
    return found


def apply(request: Json) -> Json:
    """Do the steps of a change that are not yet so; gives what each did.

    When a step on a path fails before any unit was touched, the steps of this call are taken
    back, so nothing has changed. A failing unit step leaves the change OPEN.
    """
    body = _checked(request)
    wanted = body["change"]["id"]
    if body["dry"]:
        answers = _dry(body["steps"])
        changed = any(row["changed"] for row in answers)
        return {"change": wanted, "status": None, "changed": changed, "steps": answers}
    with Lock(f"apply {body['change']['deploy']} by {body['change']['operator']}"):
        journal.sweep()
        change = opened(body["change"])
        _planned(body["steps"])
        before = len(change["steps"])
        try:
            answers = _do_all(change, body["steps"])
        except (NodeError, OSError) as error:
            raise _taken_back(change, before, error) from error
    is_open = bool(change["steps"])
    return {
        "change": change["id"] if is_open else None,
        "status": "OPEN" if is_open else None,
        "changed": any(row["changed"] for row in answers),
        "steps": answers,
    }


def _do_all(change: Json, wanted: list[Json]) -> list[Json]:
    """Do the steps in order; gives what each did. Stops between two steps on a signal."""
    answers: list[Json] = []

    def record() -> None:
        journal.save(change)

    for step in wanted:
        if signals.interrupted():
            raise NodeError(
                f"ended by {signals.interrupted()} after {len(answers)} of {len(wanted)} steps",
                "interrupted",
                "run it again, or: rignode undo",
            )
        if step["op"] == "kube":
            changed = deployment_step.do(step, change["steps"], record)
            answers.append(_answer(step, changed, "changed" if changed else "as wanted"))
            if changed and "cache" in change["steps"][-1]:
                answers[-1]["cache"] = change["steps"][-1]["cache"]
        elif step["op"] == "unit":
            before = any(row["changed"] for row in answers)
            ran = unit_step.do(step, before, change["steps"], record)
            answers.append(_answer(step, bool(ran), ", ".join(ran) or "as wanted"))
        elif step["op"] in change_kinds.OPS:
            answers.append(_answer(step, *change_kinds.do(step, change["steps"], record)))
        else:
            changed = file_step.do(step, change["steps"], record)
            answers.append(_answer(step, changed, "changed" if changed else "as wanted"))
    return answers


def _taken_back(change: Json, before: int, error: Exception) -> NodeError:
    """Take back the steps of this call where that is safe; gives the error to raise."""
    reason = io_reason(error) if isinstance(error, OSError) else str(error)
    code = error.code if isinstance(error, NodeError) else "io"
    remedy = error.remedy if isinstance(error, NodeError) else ""
    done = change["steps"][before:]
    if code == "interrupted" or any(entry["op"] in ("unit", "kube") for entry in done):
        return NodeError(f"{reason}; the change stays OPEN", code, remedy or "rignode undo")
    try:
        file_step.settle(done)
        special = [row for row in done if row["op"] in change_kinds.OPS]
        for entry in [row for row in done if row not in special][::-1]:
            undo.revert(entry, overwrite=False)
        # these last: they look at the files
        for entry in special[::-1]:
            change_kinds.undo(entry)
        del change["steps"][before:]
        if change["steps"]:
            journal.save(change)
        else:
            journal.drop(change["id"])
    except (NodeError, OSError) as second:
        text = io_reason(second) if isinstance(second, OSError) else str(second)
        return NodeError(
            f"{reason}; taking back failed too: {text}; the change stays OPEN", code, "rignode undo"
        )
    return NodeError(f"{reason}; nothing was changed", code, remedy)


def install(request: Json) -> Json:
    """`file install`: an apply of one file step."""
    body = validate.keys(request, "request", ("change", "file"), ("change", "file"))
    if not isinstance(body["file"], dict):
        raise validate.bad("file is not an object")
    return apply({"change": body["change"], "steps": [{**body["file"], "op": "file"}]})


def _unfinished(change: Json) -> list[str]:
    """Gives the steps that were announced or failed and not done by a later one."""
    left: list[str] = []
    for n, entry in enumerate(change["steps"]):
        if entry["state"] not in ("intent", "failed"):
            continue
        about = journal.subject(entry)
        later = change["steps"][n + 1 :]
        if not any(journal.subject(row) == about and row["state"] == "done" for row in later):
            left.append(journal.describe(entry))
    return left


def close(request: Json) -> Json:
    """Set a change's final status. Raises NodeError for a status that would not be true."""
    body = validate.keys(request, "request", ("change", "status", "reason"), ("change", "status"))
    wanted = validate.choice(body["status"], "status", journal.STATUSES[1:])
    reason: str | None = None
    if body.get("reason") is not None:
        reason = validate.text(body["reason"], "reason", 2000)
    identifier = validate.change_id(body["change"])
    with Lock(f"close {identifier}"):
        change = journal.get(identifier)
        now = change["status"]
        if now == wanted:
            return {"change": change, "changed": False}
        allowed: Any = {
            "OPEN": ("COMMITTED", "ROLLED_BACK", "INCONSISTENT"),
            "INCONSISTENT": ("COMMITTED", "ROLLED_BACK"),
            "ROLLED_BACK": ("INCONSISTENT",),
        }
        if wanted not in allowed.get(now, ()):
            raise NodeError(f"change {change['id']} is {now}: it cannot become {wanted}",
                            "change_closed")  # fmt: skip
        if now != "OPEN" and not reason:
            raise validate.bad(f"a change that is {now} becomes {wanted} only with a reason")
        if now == "OPEN":
            file_step.settle(change["steps"])
            _refuse_untrue(change, wanted)
        journal.close(change, wanted, reason)
    return {"change": change, "changed": True}


def _refuse_untrue(change: Json, wanted: str) -> None:
    """Raise NodeError when the steps contradict the wanted status."""
    if wanted == "COMMITTED" and _unfinished(change):
        todo = "; ".join(_unfinished(change))
        raise NodeError(f"not all steps are done: {todo}", "unfinished", "rignode undo")
    if wanted == "ROLLED_BACK":
        left = [
            journal.describe(row)
            for row in change["steps"]
            if row["state"] != "undone" and row["op"] not in journal.LASTING
        ]
        if left:
            raise NodeError(f"not all steps are undone: {'; '.join(left)}", "unfinished",
                            f"rignode undo {change['id']}")  # fmt: skip
