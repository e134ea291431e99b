"""Memory layer: the engine left the host enough to live."""

from __future__ import annotations

from gates.core.check import GIB, MIB
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from tests.infra.observe import expect, known

# Below this sshd itself dies sooner or later (eugr#257); 2 % of a Spark are 2.4 GiB.
LEAST = 512 * MIB
LEAST_SHARE = 0.02


def test_memory_is_not_exhausted(node: Node, snapshot: NodeSnapshot) -> None:
    """MemAvailable, not MemFree: clean page cache is not in the way."""
    memory = known(snapshot.memory, node, "memory")
    least = max(LEAST, memory.total * LEAST_SHARE)
    expect(
        memory.available >= least,
        node,
        f"{memory.available / GIB:.2f} of {memory.total / GIB:.2f} GiB available "
        f"(shared memory {memory.shmem / GIB:.2f} GiB)",
        f"{least / GIB:.2f} GiB or more",
        f"on {node.name}: ps -eo pid,rss,args --sort=-rss | head; ls -l /dev/shm",
    )
