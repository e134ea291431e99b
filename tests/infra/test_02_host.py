"""Kernel layer: the hosts answer, their clocks agree, their driver is there."""

from __future__ import annotations

from testinfra.host import Host

from gates.gpu import driver
from gates.host import reachable as host_gates
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from tests.infra.observe import Observation, expect, no_findings
from tests.infra.plugin import Rig


def test_node_answers_with_its_boot(node: Node, host: Host, snapshot: NodeSnapshot) -> None:
    """The kernel that answers now is the one that the snapshot is about."""
    seen = host.check_output("cat /proc/sys/kernel/random/boot_id")
    print(f"{node.name}: boot_id {seen}, up {snapshot.identity.uptime_s:.0f} s")
    expect(
        seen == snapshot.identity.boot_id,
        node,
        f"boot_id {seen} now, {snapshot.identity.boot_id} a moment ago (it rebooted)",
        "one boot during the whole suite",
        "running this suite again",
    )


def test_every_section_of_the_snapshot_is_known(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """What a host cannot report is unknown, and unknown is not fine."""
    no_findings(rig, observation, [host_gates.sections_readable], node)


def test_clock_agrees(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Logs and journals of the nodes and of this machine are compared by time."""
    off = observation.clock_off_s[node.name]
    expect(
        abs(off) <= host_gates.CLOCK_SKEW_S,
        node,
        f"its clock is {off:+.1f} s off this machine's",
        f"within {host_gates.CLOCK_SKEW_S:.0f} s",
        f"on {node.name}: sudo timedatectl set-ntp true && timedatectl status",
    )
    no_findings(rig, observation, [host_gates.clock_skew], node, warn=True)


def test_driver_has_the_gpus_that_the_recipe_needs(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """A kernel without its NVIDIA module boots well and has no GPU."""
    no_findings(rig, observation, driver.GATES, node)
