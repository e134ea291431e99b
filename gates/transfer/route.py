"""Gates before anything moves between nodes: the way to the giver, its port, room at the taker."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, update_wrapper

from gates.core.check import Gate, Observed, answering_nodes, gib
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.host import other_rig, reachable, storage
from gates.transfer import fabric
from schema.desired.plan import Plan
from schema.observed.network import ReachAsk
from schema.observed.snapshot import Unreadable

# Findings of the fabric that a waiver turns into "then over the LAN".
OFF_FABRIC = frozenset({"fabric-down", "fabric-address", "fabric-route"})
ROOM_LEFT = 512 * 1024**2
_ANY = {"0.0.0.0", "::", "*"}


@dataclass(frozen=True)
class TransferRequest:
    """A transfer as it is asked for: the node that gives (None: nobody named one), its TCP port,
    the codes that the operator waives.

    `is_made`: the right content is not a node's, but what an archive says. `is_compared`: every
    node is compared with the giver. `is_fetched`: the giver gets it first, from elsewhere.
    `takers`: of a backup.
    """

    source: str | None
    port: int
    waive: Collection[str] = ()
    is_made: bool = False
    is_compared: bool = False
    is_fetched: bool = False
    takers: Collection[str] = ()


# The gates before any transfer: nodes, fabric, nobody else at work.
BEFORE: tuple[Gate, ...] = (
    reachable.nodes_reachable,
    *other_rig.GATES,
    *fabric.GATES,
    storage.lock_free,
    storage.changes_closed,
    storage.journal_whole,
)


RequestGate = Callable[[TransferRequest, Plan, Observed], list[Violation]]


def gates_for(asked: TransferRequest, *gates: RequestGate) -> tuple[Gate, ...]:
    """The gates, each about this transfer, under its own name."""
    return tuple(update_wrapper(partial(gate, asked), gate) for gate in gates)


def used_waivers(plan: Plan, observed: Observed, waive: Collection[str]) -> set[str]:
    """The codes about the fabric that there is a finding of and that the operator waives."""
    found = {v.code for gate in fabric.GATES for v in gate(plan, observed)}
    return found & set(waive) & OFF_FABRIC


def route_of(plan: Plan, waived: Collection[str]) -> tuple[dict[str, str], dict[str, str | None]]:
    """How takers reach the giver: each node's address, and its own device (None: any route).

    Out of the fabric's devices; over the LAN where a finding about the fabric was waived.
    """
    nodes = plan.rig.nodes
    if plan.rig.fabric is None or OFF_FABRIC & set(waived):
        return {n.name: str(n.lan_address) for n in nodes}, {n.name: None for n in nodes}
    return (
        {n.name: str(n.fabric_address) for n in nodes},
        {n.name: n.fabric_device for n in nodes},
    )


def with_route_probe(plan: Plan, port: int, waive: Collection[str]) -> Plan:
    """The plan whose snapshots also try the giver's port on each way that a transfer may take."""
    ways = [route_of(plan, ())]
    if OFF_FABRIC & set(waive):
        ways.append(route_of(plan, waive))
    requests = {
        name: request.model_copy(
            update={
                "reach": tuple(
                    ReachAsk(address=address, port=port, device=devices[name])
                    for addresses, devices in ways
                    for other, address in addresses.items()
                    if other != name
                )
            }
        )
        for name, request in plan.requests.items()
    }
    return replace(plan, requests=requests)


def route_open(
    asked: TransferRequest,
    plan: Plan,
    observed: Observed,
    source: str | None,
    names: Collection[str],
) -> Iterator[Violation]:
    """A finding for each of the nodes whose connection to the giver's port has no answer."""
    addresses, devices = route_of(plan, used_waivers(plan, observed, asked.waive))
    for node, snapshot in answering_nodes(plan, observed):
        if (
            source not in addresses
            or node.name not in names
            or isinstance(snapshot.network, Unreadable)
        ):
            continue
        device = devices[node.name]
        wanted = (addresses[source], asked.port, device)
        rows = snapshot.network.reach
        row = next((r for r in rows if (r.address, r.port, r.device) == wanted), None)
        if row is not None and row.state in ("open", "refused"):
            continue
        where = f"{addresses[source]}:{asked.port}" + (f" out of {device}" if device else "")
        yield violation(
            "transfer-way",
            node.name,
            f"{node.name} has no way to {where}, where {source} would give",
            evidence="the snapshot does not name it" if row is None
            else f"{row.state}: {row.detail}",
            remedy=f"on {source}: sudo nft list ruleset; let TCP port {asked.port} in from "
            f"{addresses[node.name]}; or take one that is let in: --data port=N",
            unknown=row is None,
        )  # fmt: skip


def port_free(
    asked: TransferRequest, plan: Plan, observed: Observed, givers: Collection[str | None]
) -> Iterator[Violation]:
    """A finding where somebody listens on a giver's port, on the address that it would use."""
    addresses, _ = route_of(plan, used_waivers(plan, observed, asked.waive))
    for node, snapshot in answering_nodes(plan, observed):
        if node.name not in givers or isinstance(snapshot.ports, Unreadable):
            continue
        own = _ANY | {addresses[node.name]}
        holder = next(
            (p for p in snapshot.ports if p.port == asked.port and p.address in own), None
        )
        if holder is not None:
            yield violation(
                "transfer-port",
                node.name,
                f"port {asked.port} of {node.name}, which the transfer would use, is taken",
                evidence=f"{holder.address}:{asked.port} is held by {holder.process or 'unknown'} "
                f"(pid {holder.pid or 'unknown'})",
                remedy=f"take another port: --data port={asked.port + 1}",
            )


def room_on(
    plan: Plan, observed: Observed, path: str, wanted: Mapping[str, int], mend: str
) -> Iterator[Violation]:
    """A finding for each node whose disk at `path` has less free than `wanted` bytes of it.

    `mend`: what gives room there.
    """
    for node, snapshot in answering_nodes(plan, observed):
        if node.name not in wanted or isinstance(snapshot.disks, Unreadable):
            continue
        disk = next((d for d in snapshot.disks if d.path == path), None)
        need = wanted[node.name] + ROOM_LEFT
        if disk is None or disk.free < need:
            yield violation(
                "transfer-room",
                node.name,
                f"{path} on {node.name} has "
                + ("not been looked at" if disk is None else f"{gib(disk.free)} free")
                + f", the transfer may need {gib(need)}",
                evidence="the snapshot does not name it" if disk is None else
                f"mounted at {disk.mount}: {gib(disk.free)} of {gib(disk.total)} free",
                remedy=f"on {node.name}: df -h {shlex.quote(path)}; {mend}",
                unknown=disk is None,
            )  # fmt: skip
