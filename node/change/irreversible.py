"""Steps that cannot be undone (reap, shm, caches): written to a change when there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from node.change import apply, journal
from node.core.errors import Json
from node.files.host_lock import Lock


class Log:
    """The steps of a change, or of none: then nothing is written."""

    def __init__(self, found: Json | None) -> None:
        self._found = found
        self.steps: list[Json] = found["steps"] if found else []

    def record(self) -> None:
        """Write the change; it is on the disk on return."""
        if self._found:
            journal.save(self._found)

    def begin(self, op: str, **what: object) -> Json:
        """Gives the step of this op that a killed run left, else a new one, written as intent."""
        for row in self.steps:
            if row["op"] == op and row["state"] == "intent":
                row.update(what)
                break
        else:
            row = {"op": op, "state": "intent", **what}
            self.steps.append(row)
        self.record()
        return row

    @property
    def change_id(self) -> str | None:
        """Gives the change's id once something is written to it."""
        return str(self._found["id"]) if self._found and self.steps else None


@contextlib.contextmanager
def opened(header: Json | None, verb: str) -> Iterator[Log]:
    """Gives the log of a checked change, under the host's lock.

    Without a change it takes no lock: it may run in the unit's own start, for which another verb
    waits with the lock held.
    """
    if header is None:
        yield Log(None)
        return
    with Lock(f"{verb} {header['deploy']} by {header['operator']}"):
        journal.sweep()
        yield Log(apply.opened(header))
