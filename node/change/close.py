"""close: a change's final status, which must be true."""

from __future__ import annotations

import contextlib

from node.change import journal, kinds, look, undo
from node.core import systemctl, validate
from node.core.errors import Json, NodeError
from node.core.step_kind import PATH, POST, PRE, TAG, Steps
from node.core.step_state import DONE, FAILED, INTENT, UNDONE, UNKNOWN, subject
from node.files import ballast
from node.files.host_lock import Lock
from node.systemd import hold


def _unfinished(change: Json) -> list[str]:
    """Gives the steps that were announced or failed and not done by a later one."""
    left: list[str] = []
    for n, entry in enumerate(change["steps"]):
        if entry["state"] not in (INTENT, UNKNOWN, FAILED) or kinds.of(entry).passing:
            continue
        about = subject(entry)
        later = change["steps"][n + 1 :]
        if not any(subject(row) == about and row["state"] == DONE for row in later):
            left.append(journal.describe(entry))
    return left


def close(request: Json) -> Json:
    """Set a change's final status. Raises NodeError for a status that would not be true."""
    keys = ("change", "status", "reason", "run")
    body = validate.keys(request, "request", keys, keys[:2])
    wanted = validate.choice(body["status"], "status", journal.STATUSES[1:])
    reason: str | None = None
    if body.get("reason") is not None:
        reason = validate.text(body["reason"], "reason", 2000)
    identifier = validate.change_id(body["change"])
    with Lock(f"close {identifier}"), ballast.Room():
        change = journal.get(identifier)
        kinds.require_known(change)
        if "run" in body:
            journal.require_owner(change, journal.token(body["run"], "run"))
        now = change["status"]
        if now == wanted:
            return {"change": change, "changed": False}
        allowed = {
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
            kinds.recover(change["steps"])
        _refuse_untrue(change, wanted)
        steps = Steps(change, lambda: journal.save(change))
        if hold.lift(steps):
            steps.write()
            with contextlib.suppress(NodeError):  # the assertion names the file: starts pass now
                systemctl.systemctl("daemon-reload")
        journal.close(change, wanted, reason)
    return {"change": change, "changed": True}


def _edited(change: Json) -> list[str]:
    """Gives in what paths, tags, and units that the change started are not as it left them.

    A reboot in the change starts a unit that it stopped, uses a boot entry up and loads other
    modules: those, packages and containers are for the caller's own proof.
    """
    done = [row for row in change["steps"] if row["state"] == DONE]
    asked = {row["unit"]: row["active"] for row in done if row["op"] == "unit" and row["active"]}
    up = {name for name, active in asked.items()
          if active != "stop" and not systemctl.may_have_ended(name)}  # fmt: skip
    looked = [kinds.of(row).phase in (PATH, TAG) or kinds.of(row).moves or row.get("unit") in up
              for row in done]  # fmt: skip
    return look.lines([row for row, is_one in zip(done, looked, strict=True) if is_one], POST)


def _refuse_untrue(change: Json, wanted: str) -> None:
    """Raise NodeError when the steps, or a look at what they are about, contradict the status."""
    if wanted == "COMMITTED" and change["status"] == "OPEN" and _unfinished(change):
        todo = "; ".join(_unfinished(change))
        raise NodeError(f"not all steps are done: {todo}", "unfinished", "rignode undo")
    if wanted == "COMMITTED" and change["status"] == "OPEN" and (edited := _edited(change)):
        raise NodeError(f"it is not as change {change['id']} left it: {'; '.join(edited)}",
                        "later_edit", "put it back and close it again; or undo the change: rignode "
                        f"undo {change['id']} (an edited file: add --overwrite PATH, the edit is "
                        f"then kept); or, {undo.keep(change)}")  # fmt: skip
    if wanted == "ROLLED_BACK":
        left = [
            journal.describe(row)
            for row in change["steps"]
            if row["state"] != UNDONE and not kinds.of(row).irreversible
        ]
        if left:
            raise NodeError(f"not all steps are undone: {'; '.join(left)}", "unfinished",
                            f"rignode undo {change['id']}")  # fmt: skip
        if differ := look.lines(change["steps"], PRE):
            raise NodeError(f"it is not as it was: {'; '.join(differ)}", "unfinished",
                            f"mend it, then: rignode undo {change['id']}")  # fmt: skip
