"""The LAN bridge on this machine and the fabric link between the first two hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import FABRIC_DEVICE, FABRIC_MTU, LAN_PREFIX, LabSettings, Place
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
    """Remove the bridge and every link of the lab that is still on this machine."""
    present = devices_of("self")
    for name in [place.bridge, *place.fabric_ends, *(f"vb-{host}" for host in host_names)]:
        if name in present:
            subprocess.run(["ip", "link", "delete", name], stderr=subprocess.DEVNULL)


def fabric_leaders(settings: LabSettings) -> list[int]:
    """Process ids of the first processes of the two fabric hosts that run now."""
    leaders = []
    for host in settings.place.hosts(2):
        leader = state.read(settings, host).live_leader()
        if leader:
            leaders.append(leader.pid)
    return leaders


def plug_fabric(settings: LabSettings) -> bool:
    """Join the two hosts by one veth pair; True if this call did it.

    Nothing to do while one host is down, the link is there, or it was unplugged on purpose.
    """
    with cache.locked(settings.home / "fabric.lock"):
        leaders = fabric_leaders(settings)
        if len(leaders) != 2 or settings.fabric_down_flag.exists():
            return False
        if all(FABRIC_DEVICE in devices_of(pid) for pid in leaders):
            return False
        _delete_fabric(settings.place, leaders)
        first, second = settings.place.fabric_ends
        mtu = str(FABRIC_MTU)
        console.run(["ip", "link", "add", first, "mtu", mtu, "type", "veth",
                     "peer", "name", second, "mtu", mtu])  # fmt: skip
        for end, pid in zip((first, second), leaders, strict=True):
            console.run(["ip", "link", "set", end, "netns", str(pid), "name", FABRIC_DEVICE])
        return True


def unplug_fabric(settings: LabSettings) -> None:
    """Take the fabric link away and keep it away until ``fabric up``."""
    settings.fabric_down_flag.touch()
    with cache.locked(settings.home / "fabric.lock"):
        _delete_fabric(settings.place, fabric_leaders(settings))


def _delete_fabric(place: Place, leaders: list[int]) -> None:
    present = devices_of("self")
    for end in place.fabric_ends:
        if end in present:
            subprocess.run(["ip", "link", "delete", end], stderr=subprocess.DEVNULL)
    for pid in leaders:
        if FABRIC_DEVICE in devices_of(pid):
            # the other end goes with it, so the second delete may find nothing
            subprocess.run(
                ["nsenter", "--target", str(pid), "--net",
                 "ip", "link", "delete", FABRIC_DEVICE], stderr=subprocess.DEVNULL,
            )  # fmt: skip
