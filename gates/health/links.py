"""PCIe links and network cards: narrower or slower than they can be, with errors, or volatile."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator

from gates.core.check import Observed, answering_nodes, per_node
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.health.gpu import gpus_of, reboot
from gates.health.part import health_of, known, remedy_for, this_boot, told
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.health import Counters, PciDevice
from schema.observed.network import Network
from schema.observed.snapshot import NodeSnapshot

# A GPU takes its link down to Gen1 while it idles.
BUSY_PERCENT = 50
# Corrected errors an hour; two 5090s with a bad link had thousands (vllm#14628).
CORRECTED_PER_HOUR = 1000.0
# Replays an hour: DCGM takes more than 8 a minute for a fault (dcgm_gpu_hardware_limits.h).
REPLAYS_PER_HOUR = 480.0
# NVSentinel's link-counter-detection: any, or more than so many a second.
PER_SECOND = {"link_downed": 0.0, "rnr_nak_retry_err": 0.0, "symbol_error": 10.0,
              "roce_slow_restart": 10.0}  # fmt: skip
CARRIER_CHANGES = 2
# What a link counts when the other end reboots: no error of the cable's.
BOOT_S = 120.0
PEER = ("link_downed", "carrier_changes")


def _least(one: float | None, other: float | None) -> float | None:
    """What both ends can; None where one of them does not say."""
    return None if one is None or other is None else min(one, other)


def _short(row: PciDevice) -> str | None:
    """How a link falls short of what the card and its slot can, in words."""
    lanes, speed = _least(row.card_width, row.port_width), _least(row.card_speed, row.port_speed)
    if row.width is not None and lanes is not None and row.width < lanes:
        return f"x{row.width} of x{lanes:.0f}"
    # an idle GPU's speed says nothing; its own answer under load is asked below
    if row.kind != "gpu" and row.speed is not None and speed is not None and row.speed < speed:
        return f"{row.speed:g} of {speed:g} GT/s"
    return None


@per_node
def pcie_link(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A card that was re-seated, or a second controller at Gen5 x2: slow, and no log says so (D4).

    The measure is what the card and the port before it can, so a slot of eight lanes is no fault.
    """
    for row in known(health_of(snapshot).pci, ()):
        short = _short(row)
        if short:
            evidence = (
                f"sysfs: {row.speed} GT/s x{row.width}; the card {row.card_speed} GT/s "
                f"x{row.card_width}, its port {row.port_speed} GT/s x{row.port_width}"
            )
            yield _narrow(node, f"{row.kind} {row.slot}", short, evidence)
    for gpu in gpus_of(snapshot):
        busy = (gpu.busy_percent or 0) >= BUSY_PERCENT
        if busy and gpu.link_gen and gpu.max_link_gen and gpu.link_gen < gpu.max_link_gen:
            yield _narrow(node, f"gpu {gpu.bus_id}", f"Gen{gpu.link_gen} of Gen{gpu.max_link_gen}",
                          f"nvidia-smi -q: PCIe generation {gpu.link_gen}, at most "
                          f"{gpu.max_link_gen}, busy {gpu.busy_percent} %")  # fmt: skip


def _narrow(node: Node, what: str, short: str, evidence: str) -> Violation:
    return violation(
        "pcie-link",
        node.name,
        f"the PCIe link of {what} on {node.name} is {short}",
        evidence=evidence,
        remedy=f"power {node.name} off, seat the card (or its riser) anew, look at the BIOS's "
        "setting of that slot",
    )


@per_node
def pcie_errors(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A fatal error of AER, or a link that corrects or sends again all the time.

    A head ran degraded for nine hours after a fatal AER on its CX-7 (D2). Nonfatal errors are not
    told: devices that are well log unsupported requests at each boot.
    """
    lines = [x for x in this_boot(snapshot, "aer") if "(Fatal)" in x.text or "=Fatal" in x.text]
    for device in dict.fromkeys(line.device for line in lines):
        same = [line for line in lines if line.device == device]
        yield _errors(node, str(device), "a fatal error", told(same),
                      remedy_for(snapshot, same[-1], reboot(plan, node)))  # fmt: skip
    hours = max(snapshot.identity.uptime_s / 3600, 1.0)
    for row in known(health_of(snapshot).pci, ()):
        told_already = any(line.device == row.slot for line in lines)
        fatal, corrected = row.errors.get("fatal", 0), row.errors.get("correctable", 0)
        if fatal and not told_already:
            yield _errors(node, f"{row.kind} {row.slot}", f"{fatal} fatal errors since the boot",
                          f"sysfs: aer_dev_fatal {fatal}", reboot(plan, node))  # fmt: skip
        if corrected / hours > CORRECTED_PER_HOUR:
            yield _errors(
                node, f"{row.kind} {row.slot}", f"{corrected / hours:.0f} corrected errors an hour",
                f"sysfs: aer_dev_correctable {corrected} in {hours:.0f} h",
                "another slot, riser or cable; a BIOS update; the slot at one generation less",
            )  # fmt: skip

    for gpu in gpus_of(snapshot):
        if (gpu.replays or 0) / hours > REPLAYS_PER_HOUR:
            yield _errors(
                node, f"gpu {gpu.bus_id}", f"{(gpu.replays or 0) / hours:.0f} replays an hour",
                f"nvidia-smi -q: {gpu.replays} replays in {hours:.0f} h",
                "another slot, riser or cable; a BIOS update; the slot at one generation less",
            )  # fmt: skip


def _errors(node: Node, what: str, how_many: str, evidence: str, remedy: str) -> Violation:
    return violation(
        "pcie-errors",
        node.name,
        f"{what} of {node.name} has {how_many} on PCIe",
        evidence=evidence,
        remedy=remedy,
    )


def _links(plan: Plan, node: Node, snapshot: NodeSnapshot) -> set[str]:
    """The links that the fabric runs on: its device, that one's slaves, those of RDMA ports."""
    device = plan.requests[node.name].fabric_device
    if not isinstance(snapshot.network, Network):
        return set()
    slaves = [s for link in snapshot.network.links if link.name == device for s in link.slaves]
    ports = [port.netdev for port in snapshot.network.rdma]
    return {name for name in (device, *slaves, *ports) if name}


def nic_errors(plan: Plan, observed: Observed) -> list[Violation]:
    """Counters of the fabric that grow now, and what mlx5 says of its card.

    A counter's value counts from the boot or the driver's load: only what was added counts. The
    line `insufficient power … 27W` stands on Sparks that are well (dgx-spark-playbooks PR 108).
    """
    up_s = {node.name: 0.0 for node in plan.rig.nodes}
    up_s |= {n.name: seen.identity.uptime_s for n, seen in answering_nodes(plan, observed)}

    @per_node
    def of_node(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        others = [seconds for name, seconds in up_s.items() if name != node.name]
        yield from _nic_errors(plan, node, snapshot, min(others, default=math.inf))

    return of_node(plan, observed)


def _nic_errors(
    plan: Plan, node: Node, snapshot: NodeSnapshot, peer_up_s: float
) -> Iterator[Violation]:
    """Of one node; `peer_up_s` says since when all others are up (0: one does not answer)."""
    counters = known(health_of(snapshot).counters, Counters())
    links = _links(plan, node, snapshot)
    grown = []
    for key, count in counters.grew.items():
        place, _, name = key.rpartition(" ")
        if name in PEER and peer_up_s < counters.seconds + BOOT_S:
            continue
        if name == "carrier_changes":
            grown += [key] if count > CARRIER_CHANGES and place in links else []
        elif name in PER_SECOND and count / max(counters.seconds, 0.001) > PER_SECOND[name]:
            grown.append(key)
    if grown:
        said = ", ".join(f"{key} +{counters.grew[key]}" for key in grown)
        yield violation(
            "nic-errors",
            node.name,
            f"the fabric's links on {node.name} have errors now",
            evidence=f"in {counters.seconds:g} s: {said}",
            remedy="seat the cable at both ends, or take another one; then look again",
        )
    lines = this_boot(snapshot, "nic")
    if lines:
        yield violation(
            "nic-errors",
            node.name,
            f"the network card {lines[-1].device} of {node.name} reports a fault",
            evidence=told(lines),
            remedy=remedy_for(snapshot, lines[-1], f"{reboot(plan, node)}; if it comes again: off "
                              "for 60 s at the wall"),
        )  # fmt: skip


def _numbers(version: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", version)]


def nic_firmware(plan: Plan, observed: Observed) -> list[Violation]:
    """Cards of one model with two firmwares: one end may lack what the other was mended for."""
    seen: dict[str, dict[str, list[str]]] = {}
    last: dict[tuple[str, str], str] = {}
    for node, snapshot in answering_nodes(plan, observed):
        ports = snapshot.network.rdma if isinstance(snapshot.network, Network) else ()
        for port in ports:
            if port.board and port.firmware:
                where = f"{node.name} {port.device}"
                seen.setdefault(port.board, {}).setdefault(port.firmware, []).append(where)
                last[port.board, port.firmware] = node.name
    found = []
    for board, versions in seen.items():
        if len(versions) > 1:
            behind = last[board, min(versions, key=_numbers)]
            listed = "; ".join(f"{v}: {', '.join(at)}" for v, at in sorted(versions.items()))
            found.append(
                violation(
                    "nic-firmware",
                    behind,
                    f"the network cards {board} of the rig have {len(versions)} firmwares",
                    evidence=listed,
                    remedy=f"on {behind}: sudo fwupdmgr refresh; sudo fwupdmgr update",
                )
            )
    return found


@per_node
def address_survives(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A fabric address that was set by hand with `ip addr add` is gone after the next boot.

    A link-local one is in no file: the host makes it anew at each boot (NVIDIA's playbook for two
    Sparks has netplan do so), and `rdma-address` tells what NCCL makes of it.
    """
    files = known(health_of(snapshot).addresses, {})
    address = str(node.fabric_address)
    if not files or not isinstance(snapshot.network, Network) or node.fabric_address is None:
        return
    if node.fabric_address.is_link_local:
        return
    holds = [link.name for link in snapshot.network.links
             if any(row.partition("/")[0] == address for row in link.addresses)]  # fmt: skip
    if holds and address not in files:
        yield violation(
            "fabric-volatile",
            node.name,
            f"the fabric address {address} of {node.name} would not survive a reboot",
            evidence=f"{holds[0]} has it, and no file of netplan, NetworkManager, networkd or "
            "ifupdown names it, no lease, no unit and no script of /usr/local",
            remedy=f"on {node.name}: write it into /etc/netplan or with nmcli connection modify, "
            f"for {shlex.quote(holds[0])}",
        )


GATES = (pcie_link, pcie_errors, nic_errors, nic_firmware, address_survives)
