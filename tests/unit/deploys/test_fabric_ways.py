"""The ways between two nodes that are measured, in the two shapes and with cables crossed."""

from __future__ import annotations

from typing import Any

import pytest

from deploys.procedures.transfer.fabric_ways import Way, rdma_ways, state_lines, tcp_ways
from schema.inputs.load import plan
from schema.observed.network import Network
from tests.unit.builders import snapshots as f
from tests.unit.builders.host_parts import link, rdma_port
from tests.unit.builders.spark_rig import ROOT, host

HEAD, PEER = "spark1", "spark2"


def ways(kind: Any, hosts: dict[str, Any], *changes: tuple[str, str, Any]) -> list[Way]:
    """The ways from the head to the other node, with (node, path, value) replaced."""
    made = plan(hosts, None, ROOT)
    seen = dict(f.healthy(made))
    for node, path, value in changes:
        seen[node] = f.put(seen[node], path, value)
    networks = {name: s.network for name, s in seen.items() if isinstance(s.network, Network)}
    return list(kind(made, made.rig.head, made.rig.node(PEER), networks))


def told(found: list[Way]) -> list[str]:
    """Each way in a word: its name, and the devices and rows at both ends."""
    return [
        f"{w.name}: {end(w.sender)} -> {end(w.receiver)}" for w in found
    ]  # fmt: skip


def end(one: Any) -> str:
    row = f" {one.rdma['device']}#{one.rdma['gid']}" if one.rdma else ""
    return f"{one.address} {one.device}{row}"


BONDED = {HEAD: host(1), PEER: host(2)}
TWIN_KEYS = {"fabric_device": "enp1s0f1np1", "hcas": "rocep1s0f1,roceP2p1s0f1", "fabric_mtu": 1500}
TWINS = {HEAD: host(1, **TWIN_KEYS), PEER: host(2, **TWIN_KEYS)}
CROSSED = {HEAD: host(1, hcas="rocep1s0f0"), PEER: host(2, hcas="rocep1s0f1")}
TWO_NETS = tuple(
    row
    for number, name in enumerate((HEAD, PEER), 1)
    for row in (
        (name, "network.links", (
            link("enp1s0f1np1", addresses=(f"10.0.0.{number}/24",)),
            link("enP2p1s0f1np1", addresses=(f"10.0.1.{number}/24",)))),
        (name, "network.rdma", (
            rdma_port("rocep1s0f1", f"10.0.0.{number}"),
            rdma_port("roceP2p1s0f1", "169.254.7.7", f"10.0.1.{number}"))),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "hosts", "changes", "wanted"),
    [
        (rdma_ways, BONDED, (), [
            "rocep1s0f0: 10.0.0.1 bond0 rocep1s0f0#3 -> 10.0.0.2 bond0 rocep1s0f0#3",
            "rocep1s0f1: 10.0.0.1 bond0 rocep1s0f1#3 -> 10.0.0.2 bond0 rocep1s0f1#3"]),
        (tcp_ways, BONDED, (), ["bond0: 10.0.0.1 bond0 -> 10.0.0.2 bond0"]),
        (rdma_ways, TWINS, TWO_NETS, [
            "rocep1s0f1: 10.0.0.1 enp1s0f1np1 rocep1s0f1#3 -> 10.0.0.2 enp1s0f1np1 rocep1s0f1#3",
            "roceP2p1s0f1: 10.0.1.1 enP2p1s0f1np1 roceP2p1s0f1#4 -> "
            "10.0.1.2 enP2p1s0f1np1 roceP2p1s0f1#4"]),
        (tcp_ways, TWINS, TWO_NETS, [
            "enp1s0f1np1: 10.0.0.1 enp1s0f1np1 -> 10.0.0.2 enp1s0f1np1",
            "enP2p1s0f1np1: 10.0.1.1 enP2p1s0f1np1 -> 10.0.1.2 enP2p1s0f1np1"]),
        # the twins' addresses are the other way round there: what counts is the network
        (rdma_ways, TWINS, (*TWO_NETS, (PEER, "network.rdma", (
            rdma_port("rocep1s0f1", "10.0.1.2"), rdma_port("roceP2p1s0f1", "10.0.0.2")))), [
            "rocep1s0f1 -> roceP2p1s0f1: 10.0.0.1 enp1s0f1np1 rocep1s0f1#3 -> "
            "10.0.0.2 enp1s0f1np1 roceP2p1s0f1#3",
            "roceP2p1s0f1 -> rocep1s0f1: 10.0.1.1 enP2p1s0f1np1 roceP2p1s0f1#4 -> "
            "10.0.1.2 enP2p1s0f1np1 rocep1s0f1#3"]),
        # the cable is in port 0 here and in port 1 there
        (rdma_ways, CROSSED, (), ["rocep1s0f0 -> rocep1s0f1: 10.0.0.1 bond0 rocep1s0f0#3 -> "
                                  "10.0.0.2 bond0 rocep1s0f1#3"]),
        (rdma_ways, CROSSED, ((PEER, "network.rdma", ()),), []),
        (rdma_ways, CROSSED, ((HEAD, "network.rdma.2", rdma_port("rocep1s0f0")),), []),
    ],
)  # fmt: skip
def test_the_ways(kind: Any, hosts: Any, changes: Any, wanted: list[str]) -> None:
    assert told(ways(kind, hosts, *changes)) == wanted


def test_what_a_node_is_told_to_have() -> None:
    made = plan({HEAD: host(1), PEER: host(2, uncabled="enp1s0f0np0")}, None, ROOT)
    node, seen = made.rig.node(PEER), f.healthy(made)[PEER]
    for path, value in (
        ("network.links.0.bond_slaves_down", ("enP2p1s0f0np0", "enp1s0f0np0")),
        ("network.links.0.carrier", False),
        ("network.rdma", (rdma_port("rocep1s0f1", state="DOWN", link="Polling", netdev=None),)),
        ("network.peers", ()),
    ):
        seen = f.put(seen, path, value)
    assert isinstance(seen.network, Network)
    assert list(state_lines(made, node, seen.network)) == [
        "bond0: 10.0.0.2/24, MTU 9000, no carrier, slaves enP2p1s0f0np0 (DOWN), "
        "enp1s0f0np0 (never cabled)",
        "rocep1s0f1 on no netdev: DOWN, Polling; no address",
        "to spark1 10.0.0.1 not asked",
    ]
    bare = seen.network.model_copy(update={"links": (), "rdma": ()})
    assert list(state_lines(made, node, bare))[:2] == [
        "bond0: no such device", "no RDMA device: between nodes there is TCP alone",
    ]  # fmt: skip
