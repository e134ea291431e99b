"""One thing that is kept, as the rule sees it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple


class Item(NamedTuple):
    """`needed` says why it must stay, "" when it may go; `over`: it goes also as one of the newest.

    The rule counts the newest of each `group` apart.
    """

    name: str
    bytes: int
    remove: Callable[[], None]
    needed: str = ""
    group: str = ""
    over: bool = False


def file_bytes(path: str) -> int:
    """Gives a file's size, 0 when it is gone."""
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0
