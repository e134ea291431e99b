"""The LAN bridge on this machine, and the fabric: a cable between two hosts, a switch for more."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import (
    FABRIC_DEVICE,
    FABRIC_MTU,
    LAN_PREFIX,
    LabHost,
    LabSettings,
    Place,
)
from lab.hosts import state


def devices(net_dev: str) -> set[str]:
    """Names of the network devices in the text of a /proc/PID/net/dev."""
    return {line.split(":")[0].strip() for line in net_dev.splitlines() if ":" in line}


def devices_of(pid: int | str) -> set[str]:
    """Network devices in the network namespace of a process; empty if it is gone."""
    try:
        return devices(Path(f"/proc/{pid}/net/dev").read_text())
    except OSError:
        return set()


def bridge_up(place: Place) -> None:
    """Make the LAN bridge with the operator's address, if it is not there."""
    bridge = place.bridge
    if bridge in devices_of("self"):
        return
    console.run(["ip", "link", "add", bridge, "type", "bridge"])
    address = f"{place.operator_address}/{LAN_PREFIX}"
    console.run(["ip", "address", "add", address, "dev", bridge])
    console.run(["ip", "link", "set", bridge, "up"])


def remove_links(place: Place, host_names: list[str]) -> None:
    """Remove the bridges and every link of the lab that is still on this machine."""
    present = devices_of("self")
    bridges = [place.bridge, place.fabric_bridge]
    for name in [*bridges, *place.fabric_links, *(f"vb-{host}" for host in host_names)]:
        if name in present:
            subprocess.run(["ip", "link", "delete", name], stderr=subprocess.DEVNULL)


def fabric_leaders(settings: LabSettings) -> dict[LabHost, int]:
    """Process ids of the first processes of the fabric's hosts that run now."""
    states = {host: state.read(settings, host).live_leader() for host in settings.fabric_hosts()}
    return {host: leader.pid for host, leader in states.items() if leader}


def plug_fabric(settings: LabSettings) -> bool:
    """Join two hosts by a cable (one veth pair), more by a switch (a bridge); True if this call
    did it.

    Nothing to do where the links are there or were unplugged on purpose. A cable needs both hosts;
    a switch joins each host as it comes.
    """
    with cache.locked(settings.home / "fabric.lock"):
        leaders = fabric_leaders(settings)
        bare = {h: pid for h, pid in leaders.items() if FABRIC_DEVICE not in devices_of(pid)}
        if not bare or settings.fabric_down_flag.exists():
            return False
        if len(settings.fabric_hosts()) > 2:
            _plug_into_switch(settings.place, bare)
            return True
        if len(leaders) < 2:
            return False
        _delete_fabric(settings.place, leaders)
        _move_in(dict(zip(_veth(*settings.place.fabric_links[:2]), leaders.values(), strict=True)))
        return True


def _plug_into_switch(place: Place, bare: dict[LabHost, int]) -> None:
    bridge = place.fabric_bridge
    if bridge not in devices_of("self"):
        console.run(["ip", "link", "add", bridge, "type", "bridge"])
        console.run(["ip", "link", "set", bridge, "up"])
    for host, pid in bare.items():
        port = place.fabric_links[host.number - 1]
        if port in devices_of("self"):
            console.run(["ip", "link", "delete", port])
        _, inner = _veth(port, f"{port}h")
        console.run(["ip", "link", "set", port, "master", bridge, "up"])
        _move_in({inner: pid})


def _veth(first: str, second: str) -> tuple[str, str]:
    """Make a pair of links with the fabric's MTU."""
    mtu = str(FABRIC_MTU)
    console.run(["ip", "link", "add", first, "mtu", mtu, "type", "veth",
                 "peer", "name", second, "mtu", mtu])  # fmt: skip
    return first, second


def _move_in(ends: dict[str, int]) -> None:
    """Give each end to the host of that process id, under the fabric device's name."""
    for end, pid in ends.items():
        console.run(["ip", "link", "set", end, "netns", str(pid), "name", FABRIC_DEVICE])


def unplug_fabric(settings: LabSettings) -> None:
    """Take the fabric's links away and keep them away until ``fabric up``."""
    settings.fabric_down_flag.touch()
    with cache.locked(settings.home / "fabric.lock"):
        _delete_fabric(settings.place, fabric_leaders(settings))


def _delete_fabric(place: Place, leaders: dict[LabHost, int]) -> None:
    present = devices_of("self")
    for end in place.fabric_links:
        if end in present:
            subprocess.run(["ip", "link", "delete", end], stderr=subprocess.DEVNULL)
    for pid in leaders.values():
        if FABRIC_DEVICE in devices_of(pid):
            # the other end goes with it, so the second delete may find nothing
            subprocess.run(
                ["nsenter", "--target", str(pid), "--net",
                 "ip", "link", "delete", FABRIC_DEVICE], stderr=subprocess.DEVNULL,
            )  # fmt: skip
