"""How each host is kept alive: watchdog, panics, journal, guard, boots and kills; read-only."""

from __future__ import annotations

from facts.rignode.fact import NodeFact
from schema.machine.host import HostFacts


class Hosts(NodeFact[HostFacts]):
    """node's `host`."""

    verb = "host"
    kind = HostFacts
