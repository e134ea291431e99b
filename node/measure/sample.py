"""measure sample: what a node has of memory and of GPUs at this moment."""

from __future__ import annotations

from node.core.errors import CannotRead, Json, NodeError
from node.health import gpus
from node.snapshot import gpus as cards
from node.snapshot import memory


def sample(request: Json) -> Json:
    """`measure sample`: memory in bytes, the GPUs as `health` tells them, and bytes of theirs that
    are used (None on a GPU without memory of its own). `problem` says what could not be read.
    """
    found: Json = {"gpus": [], "vram": None, "problem": None}
    try:
        now = memory.read()
        found |= {key: now[key] for key in ("available", "page_cache", "shmem")}
        found["gpus"] = gpus.read()
        if found["gpus"]:
            used = [row["memory_used_mib"] for row in cards.read()["gpus"]]
            known = [mib for mib in used if mib is not None]
            found["vram"] = sum(known) << 20 if known else None
    except (CannotRead, NodeError, OSError) as error:
        found["problem"] = str(error)
    return found
