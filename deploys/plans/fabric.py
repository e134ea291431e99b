"""What fabric tells: the state of each node's devices, the findings, the rate of each way."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import gevent
from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.plans.engine import expects_rdma, seen_networks, told
from deploys.plans.rig import (
    Procedure,
    dry_run,
    engine_may_run,
    once_a_run,
    refusal_line,
    report_load_and_gate,
)
from facts.node import AskFailed, ask_node
from gates import fabric
from gates.core import blocking
from gates.fabric import addresses, device_of, usable, uses_rdma
from gates.gate_sets import check
from gates.transfer import TransferRequest, route_of, with_route_probe
from operations.transfer import Route
from schema.keys import FabricData, OverFabricData
from schema.plan import Node, Plan
from schema.snapshot import Link, Network, NodeSnapshot, RdmaPort, Unreadable

# The fabric in words, and the ways from one node to another whose rate can be measured. Pure.


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


SECONDS = 5
PERFTEST = "ib_write_bw"
# A port below this share of its own rate is throttled: one twin of a Spark reaches nearly a half.
THROTTLED = 0.25


@once_a_run
def report(rig: Procedure) -> None:
    """Tells what is cabled, what is wrong, and the rates, once a run; DeployError where a finding
    blocks or a rate cannot be had.
    """
    plan = rig.plan
    if len(plan.rig.nodes) < 2:
        logger.info(f"    {plan.rig.name} has one node: there is no fabric between nodes")
        return
    seen = {
        name: snapshot.network
        for name, snapshot in rig.snapshots.items()
        if isinstance(snapshot.network, Network)
    }
    for node in plan.rig.nodes:
        for line in state_lines(plan, node, seen[node.name]) if node.name in seen else ():
            logger.info(f"    [{node.name}] {line}")
    found = check(plan, rig.snapshots, (*fabric.FABRIC_GATES, *fabric.RDMA_GATES))
    for violation in found:
        report_load_and_gate(violation)
    if blocking(found):
        raise DeployError(refusal_line(found))
    running = [name for name, snapshot in rig.snapshots.items() if _engine_runs(snapshot)]
    if running and expects_rdma(plan):
        logger.info(f"    {told(seen_networks(plan))[1]}")
    _rates(rig, seen, running)


def _engine_runs(snapshot: NodeSnapshot) -> bool:
    """Whether some engine runs there, ours or not; unknown is not idle."""
    processes = snapshot.engine_processes
    return engine_may_run(snapshot) or isinstance(processes, Unreadable) or bool(processes)


def _rates(rig: Procedure, seen: Mapping[str, Network], running: list[str]) -> None:
    data = rig.data(FabricData)
    if data.measure is False or dry_run():
        return
    if running and data.measure is None:
        logger.info(
            f"    not measured: an engine runs on {', '.join(running)}, and {SECONDS} s of all of "
            "the fabric would slow it; with it: --data measure=true"
        )
        return
    lost = []
    plan = rig.plan
    for peer in plan.rig.workers:
        with_rdma = [*rdma_ways(plan, plan.rig.head, peer, seen)]
        if with_rdma and all(_has_perftest(node) for node in (plan.rig.head.name, peer.name)):
            ways = with_rdma
        else:
            ways = [*tcp_ways(plan, plan.rig.head, peer, seen)]
        for way in ways:
            where = f"{way.sender.node} -> {way.receiver.node}, {way.name}"
            try:
                rate = _measure(way, data.port)
            except AskFailed as error:
                logger.warning(f"    [{where}] not measured: {error}")
                lost.append(where)
                continue
            by = PERFTEST if way.sender.rdma else "TCP, four streams"
            logger.info(f"    [{where}] {rate:.1f} Gbit/s ({by}, {SECONDS} s)")
            if way.rate_gbit and way.sender.rdma and rate < THROTTLED * way.rate_gbit:
                logger.warning(
                    f"    [{where}] that is far below the port's {way.rate_gbit:g} Gbit/s: a cable "
                    "that was plugged in while the node ran stays throttled until a reboot with "
                    "the cable in place; where that does not help: both nodes off for 60 s at the "
                    "wall"
                )
    if lost:
        raise DeployError(f"the rate of {len(lost)} way(s) could not be had; first {lost[0]}")


def _has_perftest(name: str) -> bool:
    try:
        return bool(ask_node(state, state.inventory.get_host(name), "rate look", {})[PERFTEST])
    except AskFailed as error:
        raise DeployError(str(error)) from None


def _measure(way: Way, port: int) -> float:
    """Gbit/s from the sender to the receiver; AskFailed with the line of the end that failed."""
    common: dict[str, Any] = {"key": secrets.token_hex(32), "seconds": SECONDS}
    there = {"address": way.receiver.address, "port": port}
    taking = {"listen": {**there, "device": way.receiver.device}, "peer": way.sender.address}
    giving = {"to": {**there, "device": way.sender.device}}
    jobs = [
        gevent.spawn(_ask, end, verb, {**common, **request, "rdma": end.rdma})
        for end, verb, request in (
            (way.sender, "rate send", giving),
            (way.receiver, "rate receive", taking),
        )
    ]
    gevent.joinall(jobs)
    answers: list[dict[str, Any]] = []
    for answer in (job.get() for job in jobs):
        if isinstance(answer, AskFailed):
            raise answer
        answers.append(answer)
    return float(next(a["gbit_s"] for a in answers if a["gbit_s"] is not None))


def _ask(end: End, verb: str, request: dict[str, Any]) -> dict[str, Any] | AskFailed:
    try:
        return ask_node(state, state.inventory.get_host(end.node), verb, request, 90)
    except AskFailed as error:
        return error


# By which way something moves between the nodes of a rig, and what its snapshots must try.


@dataclass(frozen=True)
class Want:
    """A transfer as it is asked for; `plan` has its port tried by every snapshot."""

    plan: Plan
    asked: TransferRequest


@once_a_run
def route_wanted(rig: Procedure, ask: Callable[[Plan], TransferRequest]) -> Want:
    """What is asked for, once a run: the observation is remembered by its plan.

    `ask` gives the transfer, from the plan that is to be observed.
    """
    data = rig.data(OverFabricData)
    plan = with_route_probe(rig.plan, data.port, data.waive)
    return Want(plan, ask(plan))


def planned_route(rig: Procedure) -> Route:
    """Out of the fabric device, or (waived) over the LAN by whatever route there is."""
    addresses, devices = route_of(rig.plan, [code for code, _ in rig.waivers])
    if None in devices.values():
        logger.warning(
            "what moves goes over the LAN as plain text: who listens there can read it; "
            "a one-time key and hashes keep it from being changed"
        )
    data = rig.data(OverFabricData)
    return Route(addresses, devices, data.port)
