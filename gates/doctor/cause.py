"""What a cause is, and the groups of codes that many causes explain."""

from __future__ import annotations

from dataclasses import dataclass

# What the operator sees when the engine does not serve.
SILENT = ("answer-slow", "cannot-answer", "no-answer")
DOWN = ("crash-loop", "engine-down")
UNSERVED = ("wedged-pair", *SILENT)
GHOSTS = ("unit-ghost", "script-ghost", "drop-in-no-reset", "docker-unreadable")


@dataclass(frozen=True)
class Cause:
    """A code's likely cause in a line, and the codes that it explains."""

    text: str
    here: tuple[str, ...] = ()
    anywhere: tuple[str, ...] = ()
    until: tuple[str, ...] = ()


STOPS = {"here": DOWN, "anywhere": UNSERVED}
LOADS = {"here": DOWN, "anywhere": UNSERVED, "until": GHOSTS}
