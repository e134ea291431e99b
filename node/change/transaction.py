"""One call's part of a change: opened or taken up under the host's lock, and taken back whole."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from node.change import journal, kinds, unit_step
from node.change.journal import DONE, FAILED, INTENT, UNDONE, UNKNOWN, subject
from node.change.kinds import PATH, POST, PRE, TAG, UNIT, Seen, Steps
from node.core import errors, files, systemctl, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason, io_remedy
from node.core.files import Lock

# Room that is kept for the way back: files that whoever goes back on a full disk removes first.
#
# Several files, because a disk can run out of inodes too: each of them frees one.

# what an undo writes beside what it frees: the journal's file twice (1 MiB of `blob`, 200 steps),
# the largest file that a patch tool may change (4 MiB), and what others take meanwhile
BYTES = 16 << 20
FILES = 8


def size() -> int:
    """Gives the ballast's bytes: BYTES; in another state folder than the default one (tests) what
    RIGBOOK_BALLAST says, else none."""
    if files.state_root() == files.DEFAULT_ROOT:
        return BYTES
    return int(os.environ.get("RIGBOOK_BALLAST") or 0)


def folder() -> str:
    """Gives the folder of its files."""
    return os.path.join(files.state_root(), "ballast")


def _lacks(room: int) -> bool:
    """Gives whether the disk of the state folder has less than `room` bytes, or too few inodes."""
    disk = os.statvfs(files.state_root())
    # a file system that counts no inodes (btrfs) says 0 of 0
    return disk.f_bavail * disk.f_frsize < room or (disk.f_files > 0 and disk.f_favail < FILES)


def keep_ballast() -> None:
    """Make what is missing of it, where twice as much is free; a failure is none of its caller's.

    Allocated and not written: of a file system that cannot, glibc writes zeros.
    """
    part = size() // FILES
    if not part:
        return
    with contextlib.suppress(OSError):
        names = [os.path.join(folder(), str(n)) for n in range(FILES)]
        missing = [one for one in names if not _is_whole(one, part)]
        if not missing or _lacks(2 * size()):
            return
        os.makedirs(folder(), mode=0o700, exist_ok=True)
        _make(missing, part)


def _make(paths: list[str], part: int) -> None:
    for one in paths:
        fd = os.open(one, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, part)
        finally:
            os.close(fd)


def _is_whole(path: str, part: int) -> bool:
    """Gives whether a file of it is there with all its blocks."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return False
    return info.st_size >= part and info.st_blocks * 512 >= part


class Room:
    """Room for the way back, as a context manager under the host's lock: the ballast goes where
    the disk is full, and is made anew at the end where there is room again.

    Who writes only a line takes a few `files` of it and gives them back: the undo comes later.
    """

    def __init__(self, files: int = FILES) -> None:
        self.files = files
        self.lent: list[str] = []

    def __enter__(self) -> Room:
        with contextlib.suppress(OSError):
            if _lacks(size()):
                for name in sorted(os.listdir(folder()))[: self.files]:
                    os.unlink(os.path.join(folder(), name))
                    self.lent.append(os.path.join(folder(), name))
        return self

    def __exit__(self, *_: object) -> None:
        if self.files < FILES:
            with contextlib.suppress(OSError):
                _make(self.lent, size() // FILES)
        keep_ballast()


class Transaction(Steps):
    """The steps of a change and what one call adds to them; without a change nothing is written."""

    def __init__(self, change: Json, written: bool = True) -> None:
        super().__init__(change, self._save)
        self.written = written
        self.before = len(self.rows)
        self.announced = False

    def _save(self) -> None:
        if self.written:
            journal.save(self.change)

    def announce(self) -> None:
        """Write the change before it has a step: an operator is at work on the rig."""
        self.announced = True
        self.write()

    def begin(self, op: str, **what: object) -> Json:
        """Gives the irreversible step of this op that a killed run left, else a new one, announced
        with `what` it is about to do.
        """
        for row in self.rows:
            if row["op"] == op and row["state"] == INTENT:
                row.update(what)
                self.write()
                return row
        return kinds.get(op).record(self, **what)

    @property
    def change_id(self) -> str | None:
        """Gives the change's id once something is written to it."""
        there = self.written and (self.rows or self.announced)
        return str(self.change["id"]) if there else None

    def answer(self) -> Json:
        """Gives what every changing verb says of its change."""
        return {"change": self.change_id, "status": "OPEN" if self.change_id else None}

    def forget(self, rows: list[Json]) -> None:
        """Take steps that changed nothing out of the change; an empty change goes with them."""
        self.change["steps"] = [row for row in self.rows if all(row is not one for one in rows)]
        if self.rows:
            self.write()
        elif journal.find(self.change["id"]):
            journal.discard(self.change["id"])

    def take_back(self, error: Exception) -> NodeError:
        """Take back this call's steps where that is safe; gives the error to raise.

        A unit that was touched and an end that was asked for leave the change OPEN: whoever called
        decides.
        """
        reason = kinds.reason(error)
        code = error.code if isinstance(error, NodeError) else "io"
        remedy = error.remedy if isinstance(error, NodeError) else io_remedy(error)
        done = self.rows[self.before :]
        if code == "interrupted" or any(not kinds.of(row).taken_back for row in done):
            return NodeError(f"{reason}; the change stays OPEN", code, remedy or "rignode undo")
        try:
            with Room():
                kinds.recover(done)
                for row in kinds.in_undo_order(done):
                    kinds.of(row).revert(row, overwrite=False)
                if lines := kinds.lines_of_differences(done, PRE):
                    raise NodeError("; ".join(lines), "not_as_before")
                for row in done:
                    kinds.of(row).discard(row)
                self.forget(done)
        except (NodeError, CannotRead, OSError) as second:
            return NodeError(
                f"{reason}; taking back failed too: {kinds.reason(second)}; the change stays OPEN",
                code,
                "; ".join(filter(None, (remedy or io_remedy(second), "rignode undo"))),
            )
        return NodeError(f"{reason}; nothing was changed", code, remedy)


def _open_or_resume(wanted: Json) -> Json:
    """Gives the change to append to, new or found OPEN. Raises NodeError when it must not be."""
    changes, broken = journal.read_all()
    if broken:
        raise journal.broken_error(broken)
    found = journal.find(wanted["id"])
    if found is not None:
        journal.require_owner(found, wanted["run"])
        if found["status"] != "OPEN":
            raise NodeError(f"change {found['id']} is {found['status']} already", "change_closed")
    for other in changes:
        if other["status"] == "OPEN" and other["id"] != wanted["id"]:
            raise NodeError(
                f"another change is open: {other['id']} ({other['deploy']}, {other['operator']})",
                "change_open",
                f"finish it, or undo it with: rignode undo {other['id']}",
            )
    if found is None:
        return journal.open_change(wanted, changes)
    kinds.require_known(found)
    found["program"] = errors.own_path()
    # a run that goes on in it was waived things of its own, and knows more
    known = found.setdefault("waivers", [])
    known += [row for row in wanted["waivers"] if row not in known]
    found["blob"] = wanted["blob"] if wanted["blob"] is not None else found["blob"]
    if kinds.recover(found["steps"]):
        journal.save(found)
    return found


@contextlib.contextmanager
def opened(header: Json | None, verb: str) -> Iterator[Transaction]:
    """Gives the transaction of a parsed change, under the host's lock. Raises NodeError.

    Without a change it takes no lock: it may run in the unit's own start, for which another verb
    waits with the lock held.
    """
    if header is None:
        yield Transaction({"steps": []}, written=False)
        return
    with Lock(f"{verb} {header['deploy']} by {header['operator']}"):
        journal.sweep()
        keep_ballast()
        yield Transaction(_open_or_resume(header))


# undo: put back what a change found, and never overwrite a later edit unasked.

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
    found = [row for group, _ in kinds.differing_things(back, PRE) for row in group]
    for row in found:
        row["state"] = UNKNOWN
    return bool(found)


def refuse_lasting(change: Json) -> None:
    """Raise NodeError for a change of which nothing can be undone: its status stays."""
    rows = change["steps"]
    stays = (
        kinds.lines_of_differences(rows, PRE)
        if all(kinds.of(row).irreversible for row in rows)
        else []
    )
    if stays:
        raise NodeError(
            f"change {change['id']} cannot be undone: {'; '.join(stays)}; nothing was done",
            "irreversible",
            f"run {change['deploy']} again, or {commands_to_keep(change)}",
        )


def commands_to_keep(change: Json) -> str:
    """Gives the commands for a change that stays as it is, though not as it was to be."""
    body = {"change": change["id"], "reason": "kept as it is"}
    # nobody calls what is not done, or was edited, done in one step
    typed = [f"rignode close '{json.dumps({**body, 'status': status})}'"
             for status in ("INCONSISTENT", "COMMITTED")[change["status"] != "OPEN" :]]  # fmt: skip
    return f"once it is as you want it: {' && '.join(typed)}"


def undo_left(change: Json) -> list[str]:
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
        for group, lines in kinds.differing_things(rows, PRE, tuple(self.to_start)):
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
            with Room():
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
            again += f"; {commands_to_keep(change)}"
        raise NodeError(reason, "undo_incomplete", again)
    journal.close(change, "ROLLED_BACK", "; ".join([told, *undo_left(change)]))
    return {
        "change": change["id"],
        "status": "ROLLED_BACK",
        "changed": True,
        "detail": "undone",
        "steps": job.answers,
        "to_start": job.to_start,
        "left": undo_left(change),
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


# close: a change's final status, which must be true.


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
    with Lock(f"close {identifier}"), Room():
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
        if unit_step.lift_hold(steps):
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
    return kinds.lines_of_differences(
        [row for row, is_one in zip(done, looked, strict=True) if is_one], POST
    )


def _refuse_untrue(change: Json, wanted: str) -> None:
    """Raise NodeError when the steps, or a look at what they are about, contradict the status."""
    if wanted == "COMMITTED" and change["status"] == "OPEN" and _unfinished(change):
        todo = "; ".join(_unfinished(change))
        raise NodeError(f"not all steps are done: {todo}", "unfinished", "rignode undo")
    if wanted == "COMMITTED" and change["status"] == "OPEN" and (edited := _edited(change)):
        raise NodeError(f"it is not as change {change['id']} left it: {'; '.join(edited)}",
                        "later_edit", "put it back and close it again; or undo the change: rignode "
                        f"undo {change['id']} (an edited file: add --overwrite PATH, the edit is "
                        f"then kept); or, {commands_to_keep(change)}")  # fmt: skip
    if wanted == "ROLLED_BACK":
        left = [
            journal.describe(row)
            for row in change["steps"]
            if row["state"] != UNDONE and not kinds.of(row).irreversible
        ]
        if left:
            raise NodeError(f"not all steps are undone: {'; '.join(left)}", "unfinished",
                            f"rignode undo {change['id']}")  # fmt: skip
        if differ := kinds.lines_of_differences(change["steps"], PRE):
            raise NodeError(f"it is not as it was: {'; '.join(differ)}", "unfinished",
                            f"mend it, then: rignode undo {change['id']}")  # fmt: skip


# claim and beat: whose an open change is, and that its run lives (docs/adr/0022).
#
# A run writes into a change with its own token. Another run that takes the change up puts its
# token
# there, and what the first one writes later is refused.


def claim(request: Json, around: Around) -> Json:
    """Make a change this run's, when it still belongs to the run `former`; gives `claimed`, and
    else whose it is.

    With `take_back` what it did is undone, but for the units in `keep`, which stay stopped: the
    change stays OPEN, and knows what they were. Raises NodeError as an undo does.
    """
    names = ("change", "run", "former", "operator", "deploy", "take_back", "keep", "overwrite")
    body = validate.keys(request, "request", names, names[:5])
    identifier = validate.change_id(body["change"])
    token = journal.token(body["run"], "run")
    operator = validate.text(body["operator"], "operator", 200)
    deploy = validate.text(body["deploy"], "deploy", 80)
    keep = [validate.unit(row, f"keep[{n}]")
            for n, row in enumerate(validate.array(body.get("keep", []), "keep"))]  # fmt: skip
    rows = validate.array(body.get("overwrite") or [], "overwrite")
    overwrite = [validate.path(row, f"overwrite[{n}]") for n, row in enumerate(rows)]
    goes_back = validate.boolean(body.get("take_back", False), "take_back")
    room = Room() if goes_back else Room(1)
    with Lock(f"claim {identifier} by {operator}"), room:
        journal.sweep()
        change = journal.get(identifier)
        now = change.get("run")
        # a rollback claims a COMMITTED change; one to resume was proven since the caller looked
        ended = ("ROLLED_BACK", "COMMITTED") if goes_back else ("ROLLED_BACK",)
        if change["status"] in ended or now not in (token, body["former"]):
            return {**_told(change), "claimed": False}
        steps: list[Json] = []
        if now != token:
            change["run"] = token
            change["taken"] = {"operator": operator, "deploy": deploy, "unix_s": time.time()}
            journal.save(change)
        if goes_back:
            steps = take_back(change, keep, overwrite, around)
        return {**_told(change), "claimed": True, "steps": steps, "state": change}


def _told(change: Json) -> Json:
    """Gives whose a change is, and the seconds since that run's last sign of life."""
    by = change.get("taken") or change
    return {
        "change": change["id"],
        "status": change["status"],
        "run": change.get("run"),
        "operator": by["operator"],
        "deploy": by["deploy"],
        "quiet_s": abs(time.time() - journal.last_sign(change)),
    }


def beat(request: Json) -> Json:
    """Note that a change's run lives, or with `over` that it has ended; gives `mine`: whether the
    change is still that run's and not closed. Takes no lock: a step may hold it for minutes.
    """
    body = validate.keys(request, "request", ("change", "run", "over"), ("change", "run"))
    change = journal.get(validate.change_id(body["change"]))
    over = validate.boolean(body.get("over", False), "over")
    mine = change.get("run") == journal.token(body["run"], "run")
    if mine:
        # a close meanwhile puts a new file there, whose time says nothing any more
        os.utime(journal.path_of(change["id"]), (0, 0) if over else None)
    return {**_told(change), "mine": mine and change["status"] != "ROLLED_BACK"}
