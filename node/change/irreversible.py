"""The kinds that cannot be undone (reap, shm, caches): told, and passed over.

They took what was proven to be nobody's (orphans, unmapped segments), or what comes back by itself
(the page cache). So is node/kube/restart_step.py, whose pods last.
"""

from __future__ import annotations

from node.core.errors import Json
from node.core.step_kind import Kind


class Irreversible(Kind):
    """What was ended, removed or begun stays so; whoever runs the verb again finishes it."""

    irreversible = True
    passing = True
    taken_back = False

    def about(self, entry: Json) -> str:
        """Each step is about something of its own."""
        return f"{self.op} {id(entry)}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """The verb itself takes its announced step up again."""
        return str(entry["state"])
