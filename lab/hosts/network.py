"""The LAN bridge on this machine and the fabric link between the first two hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab import cache, console
from lab.hosts import state
from lab.settings import (
    FABRIC_DEVICE,
    FABRIC_MTU,
    LAN_BRIDGE,
    LAN_PREFIX,
    OPERATOR_ADDRESS,
    LabSettings,
    make_hosts,
)

FABRIC_ENDS = ("rig-fab1", "rig-fab2")


def devices(net_dev: str) -> set[str]:
    """Names of the network devices in the text of a /proc/PID/net/dev."""
    return {line.split(":")[0].strip() for line in net_dev.splitlines() if ":" in line}


def devices_of(pid: int | str) -> set[str]:
    """Network devices in the network namespace of a process; empty if it is gone."""
    try:
        return devices(Path(f"/proc/{pid}/net/dev").read_text())
    except OSError:
        return set()


def bridge_up() -> None:
    """Make the LAN bridge with the operator's address, if it is not there."""
    if LAN_BRIDGE in devices_of("self"):
        return
    console.run(["ip", "link", "add", LAN_BRIDGE, "type", "bridge"])
    console.run(["ip", "address", "add", f"{OPERATOR_ADDRESS}/{LAN_PREFIX}", "dev", LAN_BRIDGE])
    console.run(["ip", "link", "set", LAN_BRIDGE, "up"])


def remove_links(host_names: list[str]) -> None:
    """Remove the bridge and every link of the lab that is still on this machine."""
    present = devices_of("self")
    for name in [LAN_BRIDGE, *FABRIC_ENDS, *(f"vb-{host}" for host in host_names)]:
        if name in present:
            subprocess.run(["ip", "link", "delete", name], stderr=subprocess.DEVNULL)


def fabric_leaders(settings: LabSettings) -> list[int]:
    """Process ids of the first processes of the two fabric hosts that run now."""
    leaders = []
    for host in make_hosts(2):
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
        _delete_fabric(leaders)
        first, second = FABRIC_ENDS
        mtu = str(FABRIC_MTU)
        console.run(["ip", "link", "add", first, "mtu", mtu, "type", "veth",
                     "peer", "name", second, "mtu", mtu])  # fmt: skip
        for end, pid in zip(FABRIC_ENDS, leaders, strict=True):
            console.run(["ip", "link", "set", end, "netns", str(pid), "name", FABRIC_DEVICE])
        return True


def unplug_fabric(settings: LabSettings) -> None:
    """Take the fabric link away and keep it away until ``fabric up``."""
    settings.fabric_down_flag.touch()
    with cache.locked(settings.home / "fabric.lock"):
        _delete_fabric(fabric_leaders(settings))


def _delete_fabric(leaders: list[int]) -> None:
    present = devices_of("self")
    for end in FABRIC_ENDS:
        if end in present:
            subprocess.run(["ip", "link", "delete", end], stderr=subprocess.DEVNULL)
    for pid in leaders:
        if FABRIC_DEVICE in devices_of(pid):
            # the other end goes with it, so the second delete may find nothing
            subprocess.run(
                ["nsenter", "--target", str(pid), "--net",
                 "ip", "link", "delete", FABRIC_DEVICE], stderr=subprocess.DEVNULL,
            )  # fmt: skip
