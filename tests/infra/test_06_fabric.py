"""Fabric layer: the private link between the nodes, which may come minutes late at boot."""

from __future__ import annotations

from gates.transfer import fabric, rdma
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from tests.infra.observe import Observation, no_findings
from tests.infra.plugin import Rig


def test_fabric_is_up_with_its_address(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Device, address and every slave of the bond; one slave down halves the rate in silence."""
    no_findings(rig, observation, [fabric.fabric_link, fabric.bond_slaves], node, warn=True)


def test_fabric_mtu(rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation) -> None:
    """The MTU of the device and of its slaves."""
    no_findings(rig, observation, [fabric.fabric_mtu], node)


def test_rdma_ports_are_those_that_the_engine_takes(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Each port of NCCL_IB_HCA is ACTIVE, with an address that the other nodes' ports share."""
    gates = [gate for gate in rdma.GATES if gate is not rdma.hca_two_ports]
    no_findings(rig, observation, gates, node, warn=True)


def test_peers_are_reached_through_the_fabric(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """The route to each peer, and a full-size unfragmented ping along it."""
    no_findings(rig, observation, [fabric.fabric_peers], node)
