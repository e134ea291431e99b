"""One call's part of a change: opened or taken up under the host's lock, and taken back whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from node.change import journal, kinds, look
from node.core import version
from node.core.errors import CannotRead, Json, NodeError, io_remedy
from node.core.step_kind import PRE, Steps
from node.core.step_state import INTENT
from node.files import ballast
from node.files.host_lock import Lock


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
            with ballast.Room():
                kinds.recover(done)
                for row in kinds.in_undo_order(done):
                    kinds.of(row).revert(row, overwrite=False)
                if lines := look.lines(done, PRE):
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
    found["program"] = version.own_path()
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
        ballast.keep()
        yield Transaction(_open_or_resume(header))
