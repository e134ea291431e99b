"""How far a recorded step came, and what it is about: all that the snapshot needs of it."""

from __future__ import annotations

from node.core.errors import Json

# an announced step ends in one of these; "unknown": what became of it could not be found out
DONE, UNDONE, FAILED, UNKNOWN, INTENT = "done", "undone", "failed", "unknown", "intent"


def subject(entry: Json) -> str:
    """Gives what a step is about: its path, its unit, else its own name."""
    keys = ("path", "unit", "image", "tool", "engine", "container", "op")
    about = (entry.get(key) for key in keys)
    return str(next((value for value in about if value), "step"))
