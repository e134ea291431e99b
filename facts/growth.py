"""What rigbook itself keeps on the hosts, with counts and bytes; read-only."""

from __future__ import annotations

from facts.rignode.fact import NodeFact
from schema.observed.files import Growth


class Growths(NodeFact[Growth]):
    """node's `growth`."""

    verb = "growth"
    kind = Growth
    # A walk over a displaced venv of 100,000 files on a cold disk.
    timeout_s = 120
