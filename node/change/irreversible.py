"""The kinds that cannot be undone (reap, shm, caches, weights, restart): told, and passed over."""

from __future__ import annotations

from node.core.errors import Json
from node.core.step_kind import Kind


class Irreversible(Kind):
    """What was ended, removed or begun stays so; whoever runs the verb again finishes it."""

    irreversible = True
    taken_back = False

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """The verb itself takes its announced step up again."""
        return str(entry["state"])
