"""Where a value of a container stands, and the error for one that is not touched."""

from __future__ import annotations

import re
from typing import NamedTuple

from node.core.errors import NodeError

# what a shell takes as it is written
PLAIN = re.compile(r"^[A-Za-z0-9_@%+=:,./-]*$")


class Place(NamedTuple):
    """Where a value stands: `env`, or an element of `args` or `command`; absent: value None."""

    kind: str
    at: int
    value: str | None
    text: str


def refused(message: str, remedy: str = "") -> NodeError:
    """Gives the error for a Deployment that is not touched."""
    return NodeError(message, "not_patched", remedy)
