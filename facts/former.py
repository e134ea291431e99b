"""What runs a vLLM on a host by other means than rigbook, and what would start it again.

`pyinfra inventory/NAME.py fact facts.former.FormerFact` prints it.
"""

from __future__ import annotations

from facts.rignode.fact import NodeFact
from schema.observed.former import Former


class FormerFact(NodeFact[Former]):
    """node's `former`."""

    verb = "former"
    kind = Former
