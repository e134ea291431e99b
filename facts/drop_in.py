"""Whether a unit would be sound with another drop-in: node's `dropin`, read-only."""

from __future__ import annotations

from typing import Any

from facts.rignode.fact import NodeFact


class DropInCheck(NodeFact[dict[str, Any]]):
    """`problems`, a line each, and `exec_start`, what the unit would start; of a request
    `{"unit", "path", "content"}`.

    A unit that cannot be extended (masked, not there) is a problem, too.
    """

    verb = "dropin"
    kind = dict
