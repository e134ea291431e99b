"""The fabric in words, and the ways from one node to another whose rate can be measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from gates.transfer.fabric import device_of
from gates.transfer.rdma import addresses, usable, uses_rdma
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.network import Link, Network, RdmaPort


@dataclass(frozen=True)
class End:
    """One end of a way: the node, its address and device there, and the RDMA port with the row of
    its GID table (None: TCP).
    """

    node: str
    address: str
    device: str | None
    rdma: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Way:
    """A way to measure. `rate_gbit` is what the sender's port came up with, in Gbit/s."""

    name: str
    sender: End
    receiver: End
    rate_gbit: float | None = None


def state_lines(plan: Plan, node: Node, network: Network) -> Iterator[str]:
    """The node's device on the fabric, its RDMA ports, and how it reaches each other node."""
    link = device_of(network, node)
    yield _link_line(node, link) if link else f"{node.fabric_device}: no such device"
    taken = usable(plan, node, network) if uses_rdma(plan, node) else []
    for port in network.rdma:
        yield _port_line(node, port) + ("; NCCL takes it" if port in taken else "")
    if not network.rdma:
        yield "no RDMA device: between nodes there is TCP alone"
    probes = {probe.address: probe for probe in network.peers}
    for peer in plan.rig.nodes:
        if peer.name != node.name:
            probe = probes.get(str(peer.fabric_address))
            told = (
                f"by {probe.route_device or 'no device'}: {probe.detail}" if probe else "not asked"
            )
            yield f"to {peer.name} {peer.fabric_address} {told}"


def _link_line(node: Node, link: Link) -> str:
    words = [
        f"{link.name}: {', '.join(link.addresses) or 'no address'}",
        f"MTU {link.mtu}",
        "up" if link.carrier else "no carrier",
    ]
    if link.slaves:
        down = {
            name: "never cabled" if name in node.uncabled else "DOWN"
            for name in link.bond_slaves_down
        }
        words.append("slaves " + ", ".join(
            f"{name} ({down[name]})" if name in down else name for name in link.slaves
        ))  # fmt: skip
    return ", ".join(words)


def _port_line(node: Node, port: RdmaPort) -> str:
    rate = f", {port.rate_gbit:g} Gbit/s" if port.rate_gbit and port.state == "ACTIVE" else ""
    gids = [f"{gid.ipv4} (GID {gid.index})" for gid in port.gids if gid.ipv4]
    return (
        f"{port.device} on {port.netdev or 'no netdev'}: {port.state or 'state unknown'}, "
        f"{port.link or 'cable unknown'}{rate}; {', '.join(gids) or 'no address'}"
    )


def rdma_ways(plan: Plan, head: Node, peer: Node, seen: Mapping[str, Network]) -> Iterator[Way]:
    """A way for each port that NCCL takes on the head, to the peer's port in the same network: the
    one of its name, where several are.
    """
    if not uses_rdma(plan, head):
        return
    theirs = usable(plan, peer, seen[peer.name])
    for port in usable(plan, head, seen[head.name]):
        mine = _end(head, port, seen[head.name])
        if mine is None:
            continue
        there = [
            (other.device != port.device, other.device, end)
            for other in theirs
            if (end := _end(peer, other, seen[peer.name], mine[0])) is not None
        ]
        if there:
            _, name, (_, receiver) = min(there, key=lambda row: row[:2])
            words = port.device if name == port.device else f"{port.device} -> {name}"
            yield Way(words, mine[1], receiver, port.rate_gbit)


def _end(
    node: Node, port: RdmaPort, network: Network, like: IPv4Interface | None = None
) -> tuple[IPv4Interface, End] | None:
    """The port as an end, by its first address (in the network of `like`); None without one."""
    for gid in port.gids:
        if gid.ipv4 not in addresses(node, port):
            continue
        where = _interface(network, gid.ipv4)
        if where is not None and (like is None or where[0].network == like.network):
            rdma = {"device": port.device, "port": port.port, "gid": gid.index}
            return where[0], End(node.name, str(gid.ipv4), where[1], rdma)
    return None


def _interface(network: Network, address: IPv4Address | None) -> tuple[IPv4Interface, str] | None:
    """The address with its network, and the link that carries it."""
    for link in network.links:
        for text in link.addresses:
            if text.split("/")[0] == str(address):
                return IPv4Interface(text), link.name
    return None


def tcp_ways(plan: Plan, head: Node, peer: Node, seen: Mapping[str, Network]) -> Iterator[Way]:
    """The fabric's own way, and one for each other network that the RDMA ports of both are in."""
    own = End(head.name, str(head.fabric_address), head.fabric_device)
    yield Way(
        f"{head.fabric_device}", own, End(peer.name, str(peer.fabric_address), peer.fabric_device)
    )
    done = {own.address}
    for way in rdma_ways(plan, head, peer, seen):
        if way.sender.address not in done and way.sender.device != head.fabric_device:
            done.add(way.sender.address)
            yield Way(f"{way.sender.device}", _plain(way.sender), _plain(way.receiver))


def _plain(end: End) -> End:
    return End(end.node, end.address, end.device)
