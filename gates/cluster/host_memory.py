"""The gate of a Kubernetes host's memory: kubelet ends pods on a host that runs out of it."""

from __future__ import annotations

from collections.abc import Iterator

from gates.core.check import MIB, gib, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot

# kubelet evicts below 100 MiB available (its default memory.available); a pod's start takes more.
FLOOR = 512 * MIB


@per_node
def host_memory(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A host with room for a pod's start: below kubelet's threshold pods are evicted, not started.

    How much GPU memory the engine gets is its limit's matter (gates/cluster/gpu_limit.py).
    """
    if plan.runtime != "deployment":
        return
    memory = require(snapshot.memory, "memory")
    if memory.available < FLOOR:
        yield violation(
            "memory-short",
            node.name,
            f"{node.name} has {gib(memory.available)} available: kubelet evicts pods",
            evidence=f"MemTotal {gib(memory.total)}, MemAvailable {gib(memory.available)}, "
            f"MemFree {gib(memory.free)}; wanted {gib(FLOOR)}",
            remedy=f"on {node.name}: ps -eo pid,rss,args --sort=-rss | head; end what nobody needs",
        )


GATES = (host_memory,)
