"""undo: put back what a change found, and never overwrite a later edit unasked."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from node.change import journal, kinds, look
from node.core import systemctl, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason, io_remedy
from node.core.step_kind import PRE, UNIT, Seen, Steps
from node.core.step_state import UNDONE, UNKNOWN, subject
from node.files import ballast
from node.files.host_lock import Lock

SYSTEMD = ("/etc/systemd/", "/usr/lib/systemd/", "/lib/systemd/", "/run/systemd/")


class Around:
    """What the verb does around the files of a stopped unit; this one does nothing."""

    def hold(self, steps: Steps, units: list[str]) -> None:
        """Refuse a start of these stopped units while files go back. Raises NodeError, OSError."""

    def clear(self) -> list[Json]:
        """End what the unit left behind; gives rows for the answer."""
        return []

    def lift(self, steps: Steps) -> None:
        """Let starts pass again, also after an undo that was killed. Raises OSError."""

    def await_start(self) -> list[Json]:
        """Wait for what the next start needs; gives rows for the answer."""
        return []


def _pick(changes: list[Json]) -> Json | None:
    """Gives the change that is OPEN, else the newest that is INCONSISTENT, or None."""
    for status in journal.UNSETTLED:
        for change in changes:
            if change["status"] == status:
                return change
    return None


def conflicts(pending: list[Json], overwrite: list[str]) -> list[str]:
    """Gives the paths that were edited after the change; reads only.

    Takes the steps newest first: what an older step finds is what the newer one's undo leaves.
    """
    seen = Seen(overwrite)
    edited: list[str] = []
    for entry in pending:
        try:
            found = kinds.of(entry).conflicts(entry, seen)
        except (KeyError, TypeError, ValueError) as error:
            what = f"{journal.describe(entry)}: {kinds.reason(error)}"
            raise NodeError(f"a step is damaged: {what}; nothing was undone", "journal_broken",
                            "put it back by hand, then: rignode close") from None  # fmt: skip
        if found and entry["path"] not in (*overwrite, *edited):
            edited.append(entry["path"])
    return edited


def _pending(change: Json) -> list[Json]:
    """Gives the steps that are to be undone, newest first."""
    rows = reversed(change["steps"])
    return [row for row in rows if row["state"] != UNDONE and not kinds.of(row).irreversible]


def _again(rows: list[Json]) -> bool:
    """Have units that were brought back, and are not as before any more, undone once more."""
    back = [row for row in rows if row["state"] == UNDONE and kinds.of(row).phase == UNIT]
    found = [row for group, _ in look.differing(back, PRE) for row in group]
    for row in found:
        row["state"] = UNKNOWN
    return bool(found)


def refuse_lasting(change: Json) -> None:
    """Raise NodeError for a change of which nothing can be undone: its status stays."""
    rows = change["steps"]
    stays = look.lines(rows, PRE) if all(kinds.of(row).irreversible for row in rows) else []
    if stays:
        raise NodeError(
            f"change {change['id']} cannot be undone: {'; '.join(stays)}; nothing was done",
            "irreversible",
            f"run {change['deploy']} again, or {keep(change)}",
        )


def keep(change: Json) -> str:
    """Gives the commands for a change that stays as it is, though not as it was to be."""
    body = {"change": change["id"], "reason": "kept as it is"}
    # nobody calls what is not done, or was edited, done in one step
    typed = [f"rignode close '{json.dumps({**body, 'status': status})}'"
             for status in ("INCONSISTENT", "COMMITTED")[change["status"] != "OPEN" :]]  # fmt: skip
    return f"once it is as you want it: {' && '.join(typed)}"


def left(change: Json) -> list[str]:
    """Gives what of an undone change is not as it was, and is nobody's to put back."""
    rows = change["steps"]
    found = [f"{kinds.of(row).about(row)}: {row['left']}" for row in rows if "left" in row]
    stays = [kinds.of(row).describe(row) for row in rows
             if kinds.of(row).irreversible and not kinds.of(row).taken_back]  # fmt: skip
    return [*found, *([f"not undone: {', '.join(dict.fromkeys(stays))}"] if stays else [])]


class _Undo:
    """One undo under way: the change, what was done, and what failed."""

    def __init__(self, change: Json, start_units: bool, around: Around) -> None:
        self.change = change
        self.steps = Steps(change, partial(journal.save, change))
        self.start_units = start_units
        self.around = around
        self.answers: list[Json] = []
        self.problems: list[str] = []
        # commands that show why the kernel refused
        self.looks: list[str] = []
        self.to_start: list[str] = []
        self.pending: list[Json] = []
        # units that stay stopped: their steps stay too, and know what they were
        self.keep: list[str] = []
        # a step that cannot be undone changed what serves
        self.stays = False

    def _try(self, what: str | Json, action: Callable[[], Any]) -> Any:
        """Gives the action's answer; a failure is noted and the undo goes on."""
        try:
            return action()
        except (NodeError, CannotRead) as error:
            self.problems.append(str(error))
        except Exception as error:  # a disk's, or that of a damaged row
            self.looks.append(io_remedy(error))
            self.problems.append(kinds.failed(what, error) if isinstance(what, dict)
                                 else f"{what}: {kinds.reason(error)}")  # fmt: skip
        return None

    def _units(self) -> dict[str, list[Json]]:
        """Gives the steps of each unit, newest first, the last touched unit first."""
        found: dict[str, list[Json]] = {}
        for row in (row for row in self.pending if kinds.of(row).phase == UNIT):
            found.setdefault(subject(row), []).append(row)
        return found

    def _pass_over(self) -> None:
        """Tell of the steps that cannot be undone; one whose traces are not known is a problem."""
        for row in self.change["steps"]:
            kind = kinds.of(row)
            if kind.irreversible:
                self.answers.append({"op": row["op"], "detail": kind.passed_over(row)})
                if row["state"] == UNKNOWN:
                    self.problems.append(f"{kind.describe(row)}: {row.get('why')}")

    def look(self, lasting: bool = True) -> None:
        """Note what is not as the steps found it; those steps are to be undone once more.

        Units that stay stopped are left out, and without `lasting` what cannot be undone.
        """
        steps = [row for row in self.change["steps"] if row.get("unit") not in self.keep]
        rows = [row for row in steps
                if row["state"] == UNDONE or (lasting and kinds.of(row).irreversible)]  # fmt: skip
        for group, lines in look.differing(rows, PRE, tuple(self.to_start)):
            self.problems += lines
            for row in group:
                if not kinds.of(row).irreversible:
                    row.update(state=UNKNOWN, why="; ".join(lines))
                else:
                    self.stays = True

    def _put_back(self, overwrite: list[str]) -> bool:
        """Revert the steps that are no unit's; gives whether systemd has to reload."""
        reload = False
        for row in kinds.in_undo_order(self.change["steps"]):
            if row not in self.pending:
                continue
            about: Json = {key: row[key] for key in ("path", "image") if key in row}
            over = row.get("path") in overwrite
            row.pop("left", None)
            detail = self._try(row, partial(kinds.of(row).revert, row, over))
            if detail is not None:
                row["state"] = UNDONE
                row.pop("why", None)
                self._try("journal", self.steps.write)
                reload = reload or about.get("path", "").startswith(SYSTEMD)
                self.answers.append({"op": row["op"], **about, "detail": detail})
        return reload

    def run(self, overwrite: list[str]) -> None:
        """Stop what is new, put the rest back, then bring back what was enabled and running."""
        self._pass_over()
        units = self._units()
        ran: dict[str, list[str]] = {}
        failed = set()
        for name, rows in units.items():
            done = self._try(name, partial(kinds.of(rows[0]).quiesce, rows))
            failed.update([name] if done is None else [])
            ran[name] = done or []
        self._try("the hold", partial(self.around.hold, self.steps, list(units)))
        self.answers += self.around.clear()
        reload = self._put_back(overwrite)
        held = bool(self.change.get("held"))
        self._try("the hold", partial(self.around.lift, self.steps))
        if self.start_units and not self.keep:
            self.answers += self.around.await_start()
        if reload or units or held:
            self._try("systemd", partial(systemctl.systemctl, "daemon-reload"))
        for name, rows in reversed([item for item in units.items() if item[0] not in self.keep]):
            resume = partial(kinds.of(rows[0]).resume, rows, self.start_units)
            done, to_start = self._try(name, resume) or (None, False)
            failed.update([name] if done is None else [])
            ran[name] += done or []
            self.to_start += [name] if to_start else []
            detail = ", ".join(ran[name]) or "was as before"
            self.answers.append({"op": rows[0]["op"], "unit": name, "detail": detail})
            if name not in failed:
                for row in rows:
                    row["state"] = UNDONE
                    row.pop("why", None)


def undo(request: Json, around: Around | None = None) -> Json:
    """Undo a change, or the last one that is not blessed; a second time changes nothing.

    Raises NodeError (`later_edit`) before anything is touched, and (`undo_incomplete`) when a
    part could not be put back: the change is then INCONSISTENT.
    """
    names = ("change", "overwrite", "start_units", "reason", "run", "despite")
    body = validate.keys(request, "request", names)
    rows = validate.array(body.get("overwrite") or [], "overwrite")
    overwrite = [validate.path(row, f"overwrite[{n}]") for n, row in enumerate(rows)]
    start_units = validate.boolean(body.get("start_units", True), "start_units")
    wanted = body.get("change")
    reason = validate.text(body.get("reason") or "undone", "reason", 2000)
    with Lock("undo"):
        journal.sweep()
        changes, broken = journal.read_all()
        if wanted is None:
            change = _pick(changes)
            if change is None and broken:
                raise journal.broken_error(broken)
        else:
            change = journal.get(validate.change_id(wanted))
        if change is None:
            return _nothing(None, "nothing to undo")
        if "run" in body:
            journal.require_owner(change, journal.token(body["run"], "run"))
        if change["status"] == "ROLLED_BACK":
            return _nothing(change, "undone already")
        _refuse_under_another(change, changes, body.get("despite"))
        kinds.require_known(change)
        try:
            with ballast.Room():
                return _undo(_Undo(change, start_units, around or Around()), overwrite, reason)
        except OSError as error:
            text = f"the undo of {change['id']} was cut short: {io_reason(error)}"
            raise NodeError(text, "io", _once_more([io_remedy(error)], change)) from error


def _refuse_under_another(change: Json, changes: list[Json], despite: object) -> None:
    """Raise NodeError (`change_open`) where another change is OPEN, whose steps stand on this one's
    or whose run is at work; one that `despite` names is none.

    One that is not settled itself is only refused under a newer one.
    """
    settled = change["status"] == "COMMITTED"
    for other in changes:  # newest first, by number: a clock may be set back
        if other["id"] == change["id"] and not settled:
            return
        if other["status"] == "OPEN" and other["id"] not in (change["id"], despite):
            raise NodeError(
                f"change {other['id']} ({other['deploy']}, {other['operator']}) is OPEN: to undo "
                f"{change['id']} would cut across it; nothing was undone",
                "change_open",
                f"end it first, such as with: rignode undo {other['id']}; or, in spite of it: "
                f"rignode undo {change['id']} --despite {other['id']}",
            )


def _nothing(change: Json | None, detail: str) -> Json:
    """Gives the answer when there is nothing to do."""
    return {
        "change": change["id"] if change else None,
        "status": change["status"] if change else None,
        "changed": False,
        "detail": detail,
        "steps": [],
        "to_start": [],
        "left": [],
    }


def _undo(job: _Undo, overwrite: list[str], told: str) -> Json:
    """Do the undo of a picked change, under the lock."""
    change = job.change
    if kinds.recover(change["steps"]) or _again(change["steps"]):
        journal.save(change)
    job.pending = _pending(change)
    refuse_lasting(change)
    _refuse_edited(job, overwrite)
    job.run(overwrite)
    job.look()
    if job.problems:
        reason = "undo: " + "; ".join(job.problems)
        journal.close(change, "INCONSISTENT", reason)
        again = _once_more(job.looks, change)
        if job.stays:
            again += f"; {keep(change)}"
        raise NodeError(reason, "undo_incomplete", again)
    journal.close(change, "ROLLED_BACK", "; ".join([told, *left(change)]))
    return {
        "change": change["id"],
        "status": "ROLLED_BACK",
        "changed": True,
        "detail": "undone",
        "steps": job.answers,
        "to_start": job.to_start,
        "left": left(change),
    }


def _once_more(looks: list[str], change: Json) -> str:
    """Gives the commands that show what stands in the way, and the one that goes on."""
    words = [*filter(None, looks), f"mend it, then run again: rignode undo {change['id']}"]
    return "; ".join(dict.fromkeys(words))


def take_back(change: Json, keep: list[str], overwrite: list[str], around: Around) -> list[Json]:
    """Undo what an open change did, for a run that goes on in it; call it under the lock.

    The units in `keep` stay stopped; the others are as before. The change stays OPEN. Raises
    NodeError as `undo`.
    """
    kinds.require_known(change)
    if kinds.recover(change["steps"]):
        journal.save(change)
    job = _Undo(change, True, around)
    job.keep, job.pending = keep, _pending(change)
    _refuse_edited(job, overwrite)
    job.run(overwrite)
    # a run that goes on finishes what cannot be undone
    job.look(lasting=False)
    journal.save(change)
    if job.problems:
        raise NodeError("take back: " + "; ".join(job.problems), "undo_incomplete", "rignode undo")
    return job.answers


def _refuse_edited(job: _Undo, overwrite: list[str]) -> None:
    """Raise NodeError (`later_edit`) where a path was edited after the change."""
    edited = conflicts(job.pending, overwrite)
    if edited:
        raise NodeError(
            f"edited after the change: {', '.join(edited)}; nothing was undone",
            "later_edit",
            "look at them; to overwrite them: rignode undo "
            + " ".join(f"--overwrite {path}" for path in edited),
        )
