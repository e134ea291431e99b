"""The kinds that cannot be undone (reap, shm, caches, weights, restart): told, and passed over.

Where one of them lasts, its change is never ROLLED_BACK: weights that came, and pods that started
with what an undo then took back. The others took what was proven to be nobody's (orphans, unmapped
segments), or what comes back by itself (the page cache, a pod of the same template).
"""

from __future__ import annotations

from node.core.errors import Json
from node.core.step_kind import PRE, Kind


class Irreversible(Kind):
    """What was ended, removed or begun stays so; whoever runs the verb again finishes it."""

    irreversible = True
    taken_back = False

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives what stays of it after an undo."""
        if side == PRE and self.op == "weights":
            return [f"weights: the files that came to {entry.get('folder')} stay"]
        if side == PRE and self.op == "restart" and entry.get("lasts", True):
            name = f"{entry.get('namespace')}/{entry.get('deployment')}"
            return [f"restart: the pods of Deployment {name} keep what they started with"]
        return []

    def about(self, entry: Json) -> str:
        """Each step is about something of its own."""
        return f"{self.op} {id(entry)}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """The verb itself takes its announced step up again."""
        return str(entry["state"])
