"""PCIe links and error counters of GPUs, network cards and NVMe disks, from sysfs.

Formats: Documentation/ABI/testing/sysfs-bus-pci (current_link_speed …) and
sysfs-bus-pci-devices-aer_stats.
"""

from __future__ import annotations

import os

from node.core import proc
from node.core.errors import Json

ROOT = "/sys/bus/pci/devices"
# the classes that matter: display, 3D, Ethernet, InfiniBand, NVMe
_CLASSES = {"0x0300": "gpu", "0x0302": "gpu", "0x0200": "nic", "0x0207": "nic", "0x0108": "nvme"}
_AER = ("fatal", "nonfatal", "correctable")


def _speed(path: str) -> float | None:
    """Gives the GT/s of `16.0 GT/s PCIe`."""
    word = proc.read_text(path).partition(" ")[0]
    return float(word) if word.replace(".", "", 1).isdigit() else None


def _width(path: str) -> int | None:
    """Gives the lanes; None where the kernel tells none (0 or 255)."""
    text = proc.read_text(path)
    lanes = int(text) if text.isdigit() else 0
    return lanes if 0 < lanes < 255 else None


def _total(path: str) -> int | None:
    """Gives the total of an aer_dev_* file; None where the kernel counts none."""
    for line in proc.read_text(path).splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("TOTAL") and value.isdigit():
            return int(value)
    return None


def read(root: str = ROOT) -> list[Json]:
    """Gives a row for each device: what the link is, what the card and the port before it can."""
    found: list[Json] = []
    for slot in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        device = os.path.realpath(f"{root}/{slot}")
        kind = _CLASSES.get(proc.read_text(f"{device}/class")[:6])
        if kind is None or not os.path.exists(f"{device}/driver"):
            continue
        if os.path.exists(f"{device}/physfn"):
            continue  # a virtual function (SR-IOV, vGPU): no link of its own, no GPU of nvidia-smi
        port = os.path.dirname(device)
        found.append(
            {
                "slot": slot,
                "kind": kind,
                "driver": os.path.basename(os.path.realpath(f"{device}/driver")),
                "speed": _speed(f"{device}/current_link_speed"),
                "width": _width(f"{device}/current_link_width"),
                "card_speed": _speed(f"{device}/max_link_speed"),
                "card_width": _width(f"{device}/max_link_width"),
                "port_speed": _speed(f"{port}/max_link_speed"),
                "port_width": _width(f"{port}/max_link_width"),
                "errors": {
                    name: total
                    for name in _AER
                    if (total := _total(f"{device}/aer_dev_{name}")) is not None
                },
            }
        )
    return found
