"""Gates of the fabric: the private link that carries every layer's all-reduce between nodes."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_interface

from gates.core import Observed, Violation, collect_check, per_node, require, violation
from schema.plan import Fabric, Node, Plan
from schema.snapshot import Link, Network, NodeSnapshot, PeerProbe, RdmaPort

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


FABRIC_GATES = (fabric_link, fabric_mtu, fabric_peers, bond_slaves)


# Gates of RDMA: would NCCL find, on every node, ports that can reach the other nodes' ports?
#
# Where it finds none it takes TCP in silence; where it takes a wrong one all ranks die or hang.

SPARK_PORT = re.compile(r"roce(?P<root>P\d+)?p\d+s\d+f(?P<port>\d+)\Z")
Ports = Sequence[RdmaPort]


@dataclass(frozen=True)
class Selector:
    """NCCL_IB_HCA: `^` excludes, `=` asks for exact names, else names are prefixes; all: none.

    Source: NCCL's manual, environment variables.
    """

    names: tuple[str, ...]
    exact: bool = False
    excludes: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Selector:
        """What an engine's environment selects."""
        text = environ.get("NCCL_IB_HCA", "")
        excludes = text.startswith("^")
        rest = text.removeprefix("^")
        names = tuple(name.strip() for name in rest.removeprefix("=").split(",") if name.strip())
        return cls(names, rest.startswith("="), excludes)

    def matches(self, name: str, port: RdmaPort) -> bool:
        """Whether one of the names means this port."""
        device, _, number = name.partition(":")
        same = port.device == device if self.exact else port.device.startswith(device)
        return same and number in ("", str(port.port))

    def chosen(self, ports: Ports) -> list[RdmaPort]:
        """The ports that it means, whatever their state."""
        if not self.names:
            return list(ports)
        named = [any(self.matches(name, port) for name in self.names) for port in ports]
        return [port for port, is_named in zip(ports, named, strict=True)
                if is_named is not self.excludes]  # fmt: skip


def uses_rdma(plan: Plan, node: Node) -> bool:
    """Whether the node's engine would look for RDMA at all."""
    environ = plan.specs[node.name].environ
    return (
        fabric_of(plan) is not None
        and plan.recipe.expect.needs_nvidia
        and environ.get("NCCL_IB_DISABLE", "0") == "0"
        and environ.get("NCCL_NET", "IB") == "IB"
    )


def usable(plan: Plan, node: Node, network: Network) -> list[RdmaPort]:
    """The ports that NCCL would take: those that the environment means and that are ACTIVE."""
    chosen = Selector.of(plan.specs[node.name].environ).chosen(network.rdma)
    return [port for port in chosen if port.state == "ACTIVE"]


def told(ports: Ports) -> str:
    """Each port with its state, for a finding."""
    rows = (
        f"{p.device} ({p.netdev or 'no netdev'}) {p.state or 'state unknown'}"
        + (f", {p.link}" if p.link and p.state != "ACTIVE" else "")
        for p in ports
    )
    return "; ".join(rows) or "none in /sys/class/infiniband"


def addresses(node: Node, port: RdmaPort) -> list[IPv4Address]:
    """The port's addresses for RoCE v2 that another node can reach.

    169.254 is one only where the whole fabric has such addresses, as after the automatic setup of
    NVIDIA's playbook.
    """
    local = node.fabric_address is not None and node.fabric_address.is_link_local
    return [one for one in port.addresses if local or not one.is_link_local]


def routable(node: Node, port: RdmaPort) -> bool:
    """Whether another node can reach the port; InfiniBand needs no address."""
    return port.link_layer == "InfiniBand" or bool(addresses(node, port))


@per_node
def rdma_missing(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """No port that NCCL could use: it takes TCP without a word (vllm PR 42075, nccl issue 952)."""
    environ = plan.specs[node.name].environ
    asked = environ.get("NCCL_IB_HCA")
    if not uses_rdma(plan, node) or not asked:
        return
    network = require(snapshot.network, "network")
    if not usable(plan, node, network):
        yield violation(
            "rdma-missing",
            node.name,
            f"no RDMA port of NCCL_IB_HCA is ACTIVE on {node.name}: the engine would use TCP",
            evidence=f"NCCL_IB_HCA={asked}; ports: {told(network.rdma)}",
            remedy=f"on {node.name}: ls /sys/class/infiniband; check the cable; name the cabled "
            "ports as hcas of this host in the inventory",
        )
    elif plan.recipe.container is not None and not plan.recipe.container.privileged:
        yield violation(
            "rdma-missing",
            node.name,
            f"the engine's container on {node.name} gets no /dev/infiniband: it would use TCP",
            evidence=f"NCCL_IB_HCA={asked}; recipe {plan.recipe.name}: container.privileged false",
            remedy=f"set container.privileged: true in catalog/recipes/{plan.recipe.name}.yaml",
        )


@per_node
def rdma_port(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A port that is named and not there or not ACTIVE: NCCL leaves it out, at that much less."""
    selector = Selector.of(plan.specs[node.name].environ)
    if not uses_rdma(plan, node) or selector.excludes:
        return
    network = require(snapshot.network, "network")
    if not usable(plan, node, network):
        return  # rdma-missing says so
    for name in selector.names:
        ports = [port for port in network.rdma if selector.matches(name, port)]
        if any(port.state == "ACTIVE" for port in ports):
            continue
        bare = any(port.netdev in node.uncabled for port in ports)
        yield violation(
            "rdma-port",
            node.name,
            f"{name} of NCCL_IB_HCA is {'not ACTIVE' if ports else 'no device'} on {node.name}: "
            "NCCL leaves it out",
            evidence=told(ports or network.rdma)
            + ("; the inventory says that it never has a cable" if bare else ""),
            remedy=f"check its cable, or name the others as hcas of {node.name} in the inventory: "
            f'"hcas": "{_names(usable(plan, node, network))}"',
        )


@per_node
def rdma_gid(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A fixed GID index goes stale: it differs by node and moves when an address is set anew, and
    NCCL dies with `unhandled system error` (MiaAI-Lab DSpark PR 10, sparkring issue 186).
    """
    index = plan.specs[node.name].environ.get("NCCL_IB_GID_INDEX", "")
    if not uses_rdma(plan, node) or not index.isdigit():
        return
    for port in usable(plan, node, require(snapshot.network, "network")):
        rows = {gid.index: gid for gid in port.gids}
        gid = rows.get(int(index))
        good = addresses(node, port)
        if port.link_layer == "InfiniBand" or (gid and gid.ipv4 in good):
            continue
        right = [str(row.index) for row in port.gids if row.ipv4 in good]
        yield violation(
            "rdma-gid",
            node.name,
            f"NCCL_IB_GID_INDEX={index} is no address of {port.device} on {node.name}",
            evidence=f"row {index}: {f'{gid.gid} {gid.kind}' if gid else 'empty'}; rows with an "
            f"address: {', '.join(right) or 'none'}",
            remedy="take NCCL_IB_GID_INDEX out of env in "
            f"catalog/recipes/{plan.recipe.name}.yaml: NCCL 2.21 and later finds the row itself",
        )


@dataclass(frozen=True)
class Rail:
    """A port that NCCL takes on a node, and the networks of its addresses."""

    node: Node
    port: RdmaPort
    networks: frozenset[IPv4Network]

    @property
    def is_bare(self) -> bool:
        """Whether it has no address that another node can reach."""
        return not routable(self.node, self.port)


def _rail(node: Node, network: Network, port: RdmaPort) -> Rail:
    """The port with its networks, as the links that carry its addresses have them."""
    wanted = {str(address) for address in addresses(node, port)}
    found = (
        ip_interface(text).network
        for link in network.links
        for text in link.addresses
        if text.split("/")[0] in wanted
    )
    return Rail(node, port, frozenset(one for one in found if isinstance(one, IPv4Network)))


def _names(ports: Collection[RdmaPort]) -> str:
    return shlex.quote(",".join(port.device for port in ports))


def rdma_address(plan: Plan, observed: Observed) -> list[Violation]:
    """Each port that NCCL takes has an address in a network of another node's ports. NCCL pairs the
    ports in their order; one with 169.254, or of another cable, ended both ranks (ainode PR 89).
    """
    seen, unknown = collect_check(plan, observed, lambda _, s: require(s.network, "network"))
    using = [(node, network) for node, network in seen if uses_rdma(plan, node)]
    rails = [
        _rail(node, network, p) for node, network in using for p in usable(plan, node, network)
    ]
    nodes = Counter(one for _, one in {(r.node.name, one) for r in rails for one in r.networks})
    # of a node without any port, and of an address that no link shows any more, none is known
    known = {r.node.name for r in rails} == {node.name for node in plan.rig.nodes} and all(
        r.networks or r.is_bare for r in rails if r.port.link_layer != "InfiniBand"
    )
    found = list(unknown) if using else []
    for rail in rails:
        if rail.port.link_layer == "InfiniBand":
            continue
        if rail.is_bare:
            reason = "has no address that another node can reach"
        elif known and all(nodes[one] < 2 for one in rail.networks):
            reason = "is in a network that no other node's ports are in"
        else:
            continue
        good = [
            r.port for r in rails if r.node == rail.node and any(nodes[n] > 1 for n in r.networks)
        ]
        found.append(_wrong_address(rail, reason, good))
    return found


def _wrong_address(rail: Rail, reason: str, good: Ports) -> Violation:
    node, port = rail.node, rail.port
    listed = ", ".join(map(str, port.addresses)) or "none"
    where = f" in {', '.join(sorted(map(str, rail.networks)))}" if rail.networks else ""
    others = f'name the others as hcas of {node.name} in the inventory: "hcas": "{_names(good)}"'
    return violation(
        "rdma-address",
        node.name,
        f"{port.device} of {node.name}, which NCCL would use, {reason}",
        evidence=f"RoCE v2 addresses of {port.device} ({port.netdev or 'no netdev'}): {listed}"
        + where,
        remedy=f"give {shlex.quote(port.netdev) if port.netdev else 'its netdev'} an address in a "
        "network that the other nodes' ports share (docs/reference/fabric.md)"
        + (f"; or {others}" if good else ""),
    )


def rdma_rate(plan: Plan, observed: Observed) -> list[Violation]:
    """A port that came up slower than the others: the slowest sets the pace of every layer."""
    seen, _ = collect_check(plan, observed, lambda _, s: require(s.network, "network"))
    ports = [
        (node, port) for node, network in seen if uses_rdma(plan, node)
        for port in usable(plan, node, network) if port.rate_gbit is not None
    ]  # fmt: skip
    best = max((port.rate_gbit or 0 for _, port in ports), default=0)
    return [
        violation(
            "rdma-rate",
            node.name,
            f"{port.device} of {node.name} came up at {port.rate_gbit:g} Gbit/s, others at "
            f"{best:g}",
            evidence="; ".join(f"{n.name} {p.device} {p.rate_gbit:g}" for n, p in ports),
            remedy=f"on {node.name}: sudo ethtool {shlex.quote(port.netdev or port.device)}; check "
            "cable and port, and reboot with the cable in place",
        )
        for node, port in ports
        if (port.rate_gbit or 0) < best
    ]


@per_node
def hca_two_ports(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """NCCL_IB_HCA names both twins of a port, not two ports: each twin carries half the rate.

    Twins of one QSFP port are rocep1s0fN and roceP2p1s0fN, each PCIe x4 (field notes, fabric). A
    twin without an address that the peer can reach is never advised: it ends both ranks.
    """
    selector = Selector.of(plan.specs[node.name].environ)
    roots: dict[str, set[str]] = defaultdict(set)
    for name in () if selector.excludes else selector.names:
        match = SPARK_PORT.match(name.partition(":")[0])
        if match:
            roots[match["port"]].add(match["root"] or "")
    if len(roots) < 2 or all(len(twins) > 1 for twins in roots.values()):
        return
    ports = [p for p in require(snapshot.network, "network").rdma if SPARK_PORT.match(p.device)]
    good = {p.device for p in ports if p.state == "ACTIVE" and routable(node, p)}
    pairs = (("rocep1s0f" + port, "roceP2p1s0f" + port) for port in sorted(roots))
    whole = next((pair for pair in pairs if good.issuperset(pair)), None)
    yield violation(
        "hca-two-ports",
        node.name,
        f"NCCL_IB_HCA of {node.name} names two ports, each without its twin: about half rate with "
        "one cable",
        evidence=f"NCCL_IB_HCA={plan.specs[node.name].environ['NCCL_IB_HCA']}; {told(ports)}",
        remedy=f"with one cable, name both of its twins of {node.name} in the inventory: "
        f'"hcas": "{",".join(whole)}"' if whole else
        "no port has both twins ACTIVE with an address that another node can reach: give the twin "
        "of the cabled port one first, in a network of its own (docs/reference/fabric.md)",
    )  # fmt: skip


RDMA_GATES = (rdma_missing, rdma_port, rdma_gid, rdma_address, rdma_rate, hca_two_ports)
