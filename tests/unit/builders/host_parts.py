"""Parts of a healthy host's snapshot; keywords change a part."""

from __future__ import annotations

from typing import Any

from gates.core.check import GIB
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.files import ChangeSummary
from schema.observed.machine import Disk, EngineProcess, Gpu
from schema.observed.network import Connection, Gid, Link, Port, RdmaPort
from schema.observed.units import Unit
from tests.unit.builders.recorded import recorded

NOW = 1_780_000_000.0
BOOT = str(recorded("change")["boot_id"])
OURS = str(recorded("process")["container_id"])
SLAVES = ("enP2p1s0f0np0", "enp1s0f0np0")

# Both ports of a Spark, each with its twin, cabled and in the bond.
HCAS = ("roceP2p1s0f0", "roceP2p1s0f1", "rocep1s0f0", "rocep1s0f1")


def rdma_port(device: str, *addresses: str, **changes: Any) -> RdmaPort:
    """An ACTIVE port of 200 Gbit/s whose GID table has these addresses from index 3 on."""
    netdev = f"{device.replace('roce', 'en')}np{device[-1]}"
    gids = [
        Gid(index=n, gid=f"::ffff:{address}", kind="RoCE v2", netdev=netdev)
        for n, address in enumerate(addresses, 3)
    ]
    own = {"device": device, "netdev": netdev, "gids": tuple(gids)}
    return RdmaPort(**recorded("rdma_port", **{**own, **changes}))


def link(name: str, **changes: Any) -> Link:
    """A link that is up at MTU 9000."""
    return Link(name=name, **recorded("link", **changes))


def process(pid: int, *argv: str, **changes: Any) -> EngineProcess:
    """An engine process of our container."""
    own = {"pid": pid, "start_ticks": 1000 + pid, "comm": argv[0][:15], "argv": argv}
    return EngineProcess(**recorded("process", **{**own, **changes}))


def port(number: int, **changes: Any) -> Port:
    """A listening port, held by sshd unless told otherwise."""
    return Port(port=number, **recorded("port", **changes))


def joined(plan: Plan, node: Node) -> tuple[Connection, ...]:
    """The connections of a node's rank with the others: the rendezvous, and one for data."""
    master = plan.recipe.multi_node.master_port if plan.recipe.multi_node else 0
    others = [other for other in plan.rig.nodes if node.role != other.role]
    return tuple(
        connection(
            str(node.fabric_address),
            local if node.role == "head" else 40000 + local % 1000,
            str(other.fabric_address),
            40000 + local % 1000 if node.role == "head" else local,
        )
        for other in others
        for local in (master, 45200)
    )


def connection(local: str, port: int, peer: str, peer_port: int, **changes: Any) -> Connection:
    """An established connection of our container's."""
    return Connection(
        local_address=local,
        local_port=port,
        peer_address=peer,
        peer_port=peer_port,
        **recorded("connection", **changes),
    )


def unit(**changes: Any) -> Unit:
    """Our unit, installed, enabled and active."""
    return Unit(**recorded("unit", **changes))


def pair_timer(**changes: Any) -> Unit:
    """The timer of the pair check, enabled and waiting."""
    return unit(**recorded("pair_timer", **changes))


def absent_unit() -> Unit:
    """Our unit where it was never installed."""
    return unit(**recorded("absent_unit"))


def change(status: str, **changes: Any) -> ChangeSummary:
    """A change of the journal."""
    return ChangeSummary(status=status, **recorded("change", **changes))


def gb10(node: Node) -> Gpu:
    """The GPU of a DGX Spark: it does not report its memory."""
    return Gpu(**recorded("gb10", uuid=f"GPU-{node.name}"))


def discrete_gpu(index: int, free: int | None, total: int | None = 16311) -> Gpu:
    """A card with memory of its own."""
    used = None if free is None or total is None else total - free
    memory = {"memory_total_mib": total, "memory_used_mib": used, "memory_free_mib": free}
    return Gpu(**recorded("discrete_gpu", index=index, uuid=f"GPU-{index}", **memory))


def disk(path: str, free: int = 2000 * GIB) -> Disk:
    """A disk with room."""
    return Disk(
        path=path, mount="/", total=4000 * GIB, free=free, inodes_free=10**8, read_only=False
    )
