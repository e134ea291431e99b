"""Gates of the fabric: the private link that carries every layer's all-reduce between nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gates.core.check import per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Fabric, Node
from schema.observed.network import Link, Network, PeerProbe
from schema.observed.snapshot import NodeSnapshot

# IPv4 and ICMP headers, which `ping -s` does not count.
PING_OVERHEAD = 28


def fabric_of(plan: Plan) -> Fabric | None:
    """The fabric of a rig of several nodes; None where no peer has to be reached."""
    return plan.rig.fabric if len(plan.rig.nodes) > 1 else None


def device_of(network: Network, node: Node) -> Link | None:
    """The node's link on the fabric, or None."""
    return next((link for link in network.links if link.name == node.fabric_device), None)


@per_node
def fabric_link(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The device is up with its address: at boot the bond may come minutes late (lab-notes)."""
    if fabric_of(plan) is None:
        return
    link = device_of(require(snapshot.network, "network"), node)
    if link is None or not link.carrier or link.state.lower() not in ("up", "unknown"):
        seen = "does not exist" if link is None else f"state {link.state}, carrier {link.carrier}"
        yield violation(
            "fabric-down",
            node.name,
            f"the fabric device {node.fabric_device} of {node.name} is not up",
            evidence=f"{node.fabric_device}: {seen}",
            remedy=f"on {node.name}: sudo ip link set {node.fabric_device} up; ip -d link show "
            f"{node.fabric_device}; check the cable",
        )
    elif str(node.fabric_address) not in {a.split("/")[0] for a in link.addresses}:
        yield violation(
            "fabric-address",
            node.name,
            f"{node.fabric_device} of {node.name} lacks its address {node.fabric_address}",
            evidence=f"addresses of {node.fabric_device}: {', '.join(link.addresses) or 'none'}",
            remedy=f"on {node.name}: ip addr show {node.fabric_device}; mend the network "
            f"configuration that should set {node.fabric_address} (netplan, networkd)",
        )


@per_node
def fabric_mtu(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The MTU on the bond AND on its slaves; one slave at 1500 loses only large frames."""
    fabric = fabric_of(plan)
    if fabric is None:
        return
    network = require(snapshot.network, "network")
    link = device_of(network, node)
    if link is None:
        return
    members = [link, *(other for other in network.links if other.name in link.slaves)]
    short = [member for member in members if member.mtu < fabric.mtu]
    if short:
        yield violation(
            "fabric-mtu",
            node.name,
            f"MTU below {fabric.mtu} on {', '.join(m.name for m in short)} of {node.name}",
            evidence=", ".join(f"{m.name} {m.mtu}" for m in members) + f"; wanted {fabric.mtu}",
            remedy=f"on {node.name}: "
            + "; ".join(
                f"sudo ip link set {shlex.quote(m.name)} mtu {fabric.mtu}" for m in reversed(short)
            )
            + ", and in the network configuration, for the next boot",
        )


@per_node
def fabric_peers(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Each peer is reached through the fabric, full size: else traffic takes 1 GbE in silence."""
    fabric = fabric_of(plan)
    if fabric is None:
        return
    probes = {probe.address: probe for probe in require(snapshot.network, "network").peers}
    for peer in plan.rig.nodes:
        if peer.name != node.name:
            address = str(peer.fabric_address)
            yield from _route(node, address, probes.get(address))
            yield from _ping(fabric, node, address, probes.get(address))


def _route(node: Node, address: str, probe: PeerProbe | None) -> Iterator[Violation]:
    device = probe.route_device if probe else None
    if device != node.fabric_device:
        yield violation(
            "fabric-route",
            node.name,
            f"{node.name} reaches {address} through {device or 'no device'}, not "
            f"{node.fabric_device}",
            evidence=f"route device {device or 'none'}, source "
            f"{(probe.route_source if probe else None) or 'none'}; "
            f"{probe.detail if probe else 'the peer was not probed'}",
            remedy=f"on {node.name}: ip route get {address}; ip addr show {node.fabric_device}",
            unknown=probe is None,
        )


def _ping(fabric: Fabric, node: Node, address: str, probe: PeerProbe | None) -> Iterator[Violation]:
    if probe is None or probe.full_size_ping is True:
        return
    tried = probe.full_size_ping is not None
    size = fabric.mtu - PING_OVERHEAD
    yield violation(
        "fabric-ping",
        node.name,
        f"a full-size unfragmented ping from {node.name} to {address} "
        + ("fails" if tried else "could not be tried"),
        evidence=f"{size} bytes + {PING_OVERHEAD} of headers: {probe.detail}",
        remedy=f"on {node.name}: ping -M do -c 3 -s {size} -I {node.fabric_device} {address}; "
        "compare the MTU of both ends and of their slaves",
        unknown=not tried,
    )


@per_node
def bond_slaves(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """All slaves of the bond are up. A warning: the bond still carries, at half the rate.

    A port that never has a cable looks the same as one that failed: the inventory's `uncabled` says
    which it is.
    """
    if fabric_of(plan) is None:
        return
    link = device_of(require(snapshot.network, "network"), node)
    if link is None:
        return
    failed = [name for name in link.bond_slaves_down if name not in node.uncabled]
    if failed:
        down = ", ".join(failed)
        named = shlex.quote(",".join(sorted({*node.uncabled, *failed})))
        bond = shlex.quote(f"/proc/net/bonding/{link.name}")
        yield violation(
            "bond-slave-down",
            node.name,
            f"slaves of {link.name} are down on {node.name}: {down}",
            evidence=f"slaves {', '.join(link.slaves)}; down: {down}",
            remedy=f"on {node.name}: cat {bond}; check that cable; where "
            f'there never is one, say so of {node.name} in the inventory: "uncabled": "{named}"',
        )


GATES = (fabric_link, fabric_mtu, fabric_peers, bond_slaves)
