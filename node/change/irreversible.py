"""The kinds that cannot be undone (reap, shm, caches, weights): told, and passed over.

Weights that came last, so their change is never ROLLED_BACK; so may node/kube/restart_step.py. The
others took what was proven to be nobody's (orphans, unmapped segments), or what comes back by
itself (the page cache).
"""

from __future__ import annotations

from node.core.errors import Json
from node.core.step_kind import PRE, Kind


class Irreversible(Kind):
    """What was ended, removed or begun stays so; whoever runs the verb again finishes it."""

    irreversible = True
    taken_back = False

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.passing = op in ("reap", "shm", "caches")

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives what stays of it after an undo."""
        if side == PRE and self.op == "weights":
            return [f"weights: the files that came to {entry.get('folder')} stay"]
        return []

    def about(self, entry: Json) -> str:
        """Each step is about something of its own."""
        return f"{self.op} {id(entry)}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """The verb itself takes its announced step up again."""
        return str(entry["state"])
