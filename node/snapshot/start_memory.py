"""What the engine's own start takes of a unified memory, as the last start showed it."""

from __future__ import annotations

import os

from node.core.errors import Json
from node.files import state_dir, state_file

FRESH: Json = {"format": 1, "begun_unix_s": None, "available": None, "taken": None}


def path() -> str:
    """Gives where it is kept between two starts."""
    return os.path.join(state_dir.root(), "start-memory.json")


def load() -> Json:
    """Gives when the last start began (None once it was measured), what was available then, and
    what the last measured one took, in bytes. Raises OSError.
    """
    return state_file.load(path(), FRESH)


def taken() -> int | None:
    """Gives the bytes that the last measured start took; None where none was. Raises OSError."""
    found = load()["taken"]
    return found if isinstance(found, int) else None
