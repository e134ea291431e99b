"""What rigbook keeps on a host, as node's `growth` tells it."""

from __future__ import annotations

from typing import Literal

from schema.core.base import Frozen

What = Literal["changes", "blobs", "programs", "displaced", "backups", "images", "evidence"]


class Kept(Frozen):
    """One kind: how many there are and their bytes; `unreadable` says why that is not known."""

    what: What
    count: int
    bytes: int
    unreadable: str | None


class Growth(Frozen):
    """All kinds, in the order in which they are told."""

    rows: tuple[Kept, ...]
