"""undo: put back what a change found, and never overwrite a later edit unasked."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from node.change import file_step, journal, kinds, stepkinds
from node.core import systemctl, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.files import atomic
from node.files.host_lock import Lock
from node.image import tag_step
from node.kube import deployment_step
from node.systemd import unit_step

SYSTEMD = ("/etc/systemd/", "/usr/lib/systemd/", "/lib/systemd/", "/run/systemd/")


def _pick(changes: list[Json]) -> Json | None:
    """Gives the newest change that is OPEN or INCONSISTENT, or None."""
    for change in changes:
        if change["status"] in ("OPEN", "INCONSISTENT"):
            return change
    return None


def _current(path: str, keep: Callable[[bytes], None] | None = None) -> Json:
    """Gives what lies at a path now; a path whose folder is gone is absent."""
    try:
        with atomic.Folder(path) as folder:
            return atomic.read_entry(folder, keep)
    except NodeError as error:
        if error.code == "no_folder":
            return dict(atomic.ABSENT)
        raise


def _same(entry: Json, current: Json) -> bool:
    """Gives True when the path is as the step found it or left it."""
    if entry["op"] in stepkinds.KINDS:
        return bool(stepkinds.KINDS[entry["op"]].same(entry, current))
    if current in (entry["pre"], entry["post"]):
        return True
    # a kill between chown and chmod leaves a folder that is neither
    return bool(entry["op"] == "directory" and current["kind"] == "directory")


def conflicts(pending: list[Json], overwrite: list[str]) -> list[str]:
    """Gives the paths that were edited after the change; reads only.

    Takes the steps newest first: what an older step finds is what the newer one's undo leaves.
    """
    now: dict[str, Json] = {}
    edited: list[str] = []
    trees: list[str] = []
    for entry in pending:
        if "path" not in entry:
            continue
        path = entry["path"]
        if entry["op"] == "kube":
            if path not in overwrite and path not in edited and deployment_step.edited(entry):
                edited.append(path)
            continue
        if any(path.startswith(moved + "/") for moved in trees):
            continue  # it lies in the other tree now; looked at when that one is back
        kind = stepkinds.KINDS.get(entry["op"])
        if kind:
            kind.ready(entry)
            trees.append(path)
        if path not in now:
            now[path] = kind.look(path) if kind else _current(path)
        if not _same(entry, now[path]) and path not in overwrite and path not in edited:
            edited.append(path)
        now[path] = entry["pre"]
    return edited


def revert(entry: Json, overwrite: bool) -> str:
    """Put one path back to what the step found; gives what was done in words.

    A later edit that is overwritten on request is kept as a blob, named in the step.
    """
    if entry["op"] in stepkinds.KINDS:
        return str(stepkinds.KINDS[entry["op"]].revert(entry, overwrite))
    kept: list[bytes] = []
    current = _current(entry["path"], kept.append)
    if os.path.isdir(os.path.dirname(entry["path"])):
        with atomic.Folder(entry["path"]) as folder:
            folder.unlink(entry["temp"])  # of an undo that was killed
    if current == entry["pre"]:
        return "was as before"
    if not _same(entry, current):
        if not overwrite:
            raise NodeError(f"{entry['path']} was edited after the change", "later_edit")
        if kept:
            entry["overwrote"] = atomic.save_blob(kept[0])
    pre = entry["pre"]
    with atomic.Folder(entry["path"]) as folder:
        if pre["kind"] == "absent" and current["kind"] == "directory":
            try:
                os.rmdir(folder.name, dir_fd=folder.fd)
            except OSError:
                return "kept: the folder is not empty"
            os.fsync(folder.fd)
            return "removed"
        if pre["kind"] == "absent":
            folder.unlink(folder.name)
            return "removed"
        owner = atomic.Owner(int(pre["mode"], 8), pre["uid"], pre["gid"])
        if pre["kind"] == "directory":
            file_step.set_directory(folder, owner, current["kind"] == "absent")
        else:
            raw = atomic.load_blob(pre["sha256"])
            atomic.replace(folder, raw, owner, entry["temp"])
    return "restored"


def _pending(change: Json) -> list[Json]:
    """Gives the steps that are to be undone, newest first."""
    return [
        row
        for row in reversed(change["steps"])
        if row["state"] != "undone" and row["op"] not in journal.LASTING
    ]


class _Undo:
    """One undo under way: the change, what was done, and what failed."""

    def __init__(self, change: Json, overwrite: list[str], start_units: bool) -> None:
        self.change = change
        self.overwrite = overwrite
        self.start_units = start_units
        self.answers: list[Json] = []
        self.problems: list[str] = []
        self.to_start: list[str] = []
        self.pending = _pending(change)
        # known before its file goes back; None: no engine here, or one that goes on running
        self.engine: Any = None

    def _try(self, what: str, action: Callable[[], Any]) -> Any:
        """Gives the action's answer; a failure is noted and the undo goes on."""
        try:
            return action()
        except (NodeError, CannotRead) as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{what}: {io_reason(error)}")
        return None

    def _units(self) -> list[tuple[str, Json, bool]]:
        """Gives each unit of the change, last touched first: its oldest pre-state, if replaced."""
        found: dict[str, tuple[Json, bool]] = {}
        for row in self.pending:
            if row["op"] == "unit":
                replaced = found.get(row["unit"], ({}, False))[1]
                found[row["unit"]] = (row["pre"], replaced or unit_step.replaced(row))
        return [(name, pre, replaced) for name, (pre, replaced) in found.items()]

    def paths(self) -> bool:
        """Put the paths back, newest step first; gives whether systemd has to reload."""
        reload = False
        for row in self.pending:
            if "path" not in row:
                continue
            path = row["path"]
            back = deployment_step.revert if row["op"] == "kube" else revert
            detail = self._try(path, partial(back, row, path in self.overwrite))
            if detail is not None:
                row["state"] = "undone"
                self._try("journal", partial(journal.save, self.change))
                reload = reload or path.startswith(SYSTEMD)
                self.answers.append({"op": row["op"], "path": path, "detail": detail})
        return reload

    def tags(self) -> None:
        """Put the tags of images back, newest step first."""
        for row in self.pending:
            if row["op"] != "tag":
                continue
            detail = self._try(row["image"], partial(tag_step.revert, row))
            if detail is not None:
                row["state"] = "undone"
                self._try("journal", partial(journal.save, self.change))
                self.answers.append({"op": "tag", "image": row["image"], "detail": detail})

    def specials(self) -> None:
        """Take back what is no path and no unit, newest first, once the files are back."""
        for row in self.pending:
            if row["op"] in kinds.OPS:
                detail = self._try(row["op"], partial(kinds.undo, row))
                if detail is not None:
                    row["state"] = "undone"
                    self._try("journal", partial(journal.save, self.change))
                    self.answers.append({"op": row["op"], "detail": detail})

    def _tell(self, name: str, lines: list[str]) -> None:
        self.answers += [{"op": "clear", "unit": name, "detail": line} for line in lines]

    def hold(self, names: list[str]) -> None:
        """Hold the stopped engine's unit, and end what it left behind."""
        # imported here: they import what imports this
        holding = importlib.import_module("node.engine.held_stopped")
        found = holding.stopped_engine()
        if found is not None and found.unit in names:
            self.engine = found
            self._try("the hold", partial(holding.hold, self.change, found.unit))
            self._tell(found.unit, holding.clear(found))

    def lift(self) -> None:
        """Lift the hold, also one of an undo that was killed, and wait for the start's memory."""
        holding = importlib.import_module("node.engine.held_stopped")
        self._try("the hold", partial(holding.lift, self.change))
        if self.engine is not None and self.start_units:
            # as it is now: the files of the former engine are back
            self._tell(self.engine.unit, holding.await_memory(holding.stopped_engine()
                                                              or self.engine))  # fmt: skip

    def run(self) -> None:
        """Stop what is new, put the paths back, then bring back what was enabled and running."""
        for row in self.change["steps"]:
            if row["op"] in journal.LASTING:
                detail = f"cannot be undone and is passed over ({row['state']})"
                if row["op"] == "tool":
                    detail = "the files that it changed are put back one by one"
                self.answers.append({"op": row["op"], "detail": detail})
        units = self._units()
        ran: dict[str, list[str]] = {name: [] for name, _, _ in units}
        failed = set()
        for name, pre, replaced in units:
            done = self._try(name, partial(unit_step.quiesce, name, pre, replaced))
            failed.update([name] if done is None else [])
            ran[name] += done or []
        self.hold([name for name, _, _ in units])
        self.tags()
        reload = self.paths()
        self.specials()
        held = bool(self.change.get("held"))
        self.lift()
        if reload or units or held:
            self._try("systemd", partial(systemctl.systemctl, "daemon-reload"))
        for name, pre, _ in reversed(units):
            done = self._try(name, partial(unit_step.resume, name, pre, self.start_units))
            failed.update([name] if done is None else [])
            ran[name] += done or []
            if not self.start_units and systemctl.is_running(pre):
                self.to_start.append(name)
            detail = ", ".join(ran[name]) or "was as before"
            self.answers.append({"op": "unit", "unit": name, "detail": detail})
        for row in self.pending:
            if row["op"] == "unit" and row["unit"] not in failed:
                row["state"] = "undone"


def undo(request: Json) -> Json:
    """Undo a change, or the last one that is not blessed; a second time changes nothing.

    Raises NodeError (`later_edit`) before anything is touched, and (`undo_incomplete`) when a
    part could not be put back: the change is then INCONSISTENT.
    """
    body = validate.keys(request, "request", ("change", "overwrite", "start_units", "reason"))
    rows = validate.array(body.get("overwrite") or [], "overwrite")
    overwrite = [validate.path(row, f"overwrite[{n}]") for n, row in enumerate(rows)]
    start_units = validate.boolean(body.get("start_units", True), "start_units")
    wanted = body.get("change")
    reason = validate.text(body.get("reason") or "undone", "reason", 2000)
    with Lock("undo"):
        journal.sweep()
        if wanted is None:
            changes, broken = journal.read_all()
            change = _pick(changes)
            if change is None and broken:
                raise journal.broken_error(broken)
        else:
            change = journal.get(validate.change_id(wanted))
        if change is None:
            return _nothing(None, "nothing to undo")
        if change["status"] == "ROLLED_BACK":
            return _nothing(change, "undone already")
        return _undo(_Undo(change, overwrite, start_units), reason)


def _nothing(change: Json | None, detail: str) -> Json:
    """Gives the answer when there is nothing to do."""
    return {
        "change": change["id"] if change else None,
        "status": change["status"] if change else None,
        "changed": False,
        "detail": detail,
        "steps": [],
        "to_start": [],
    }


def _undo(job: _Undo, told: str = "undone") -> Json:
    """Do the undo of a picked change, under the lock."""
    change = job.change
    if file_step.settle(change["steps"]):
        journal.save(change)
        job.pending = _pending(change)  # a tool that was killed has left steps of its own
    job.pending = [row for row in job.pending if row["state"] != "undone"]
    if not job.pending and change["status"] == "INCONSISTENT":
        return _nothing(change, "its steps are undone already; close it once the rig serves")
    edited = conflicts(job.pending, job.overwrite)
    if edited:
        raise NodeError(
            f"edited after the change: {', '.join(edited)}; nothing was undone",
            "later_edit",
            "look at them; to overwrite them: rignode undo "
            + " ".join(f"--overwrite {path}" for path in edited),
        )
    job.run()
    if job.problems:
        reason = "undo: " + "; ".join(job.problems)
        journal.close(change, "INCONSISTENT", reason)
        raise NodeError(reason, "undo_incomplete", "mend it, then run again: rignode undo")
    journal.close(change, "ROLLED_BACK", told)
    return {
        "change": change["id"],
        "status": "ROLLED_BACK",
        "changed": True,
        "detail": "undone",
        "steps": job.answers,
        "to_start": job.to_start,
    }
