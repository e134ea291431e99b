"""Parts of a machine's health, well unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schema.observed.health import (
    Counters,
    DriverHealth,
    GpuHealth,
    KernelLine,
    NvmeDisk,
    PciDevice,
    Smart,
    Stuck,
    Unknown,
)
from tests.unit.builders.host_parts import BOOT, NOW

DRIVER = "580.95.05"


def gpu(**changes: Any) -> GpuHealth:
    """A busy RTX 5060 Ti at its clock."""
    values = {
        "bus_id": "00000000:01:00.0", "name": "NVIDIA GeForce RTX 5060 Ti", "persistence": True,
        "display": False, "reasons": ("sw_power_cap",), "temp_c": 66, "slow_c": 95,
        "power_w": 178, "power_limit_w": 180, "usual_limit_w": 180, "clock_mhz": 2550,
        "max_clock_mhz": 3090,
        "busy_percent": 97, "link_gen": 5, "max_link_gen": 5, "replays": 0, **changes,
    }  # fmt: skip
    return GpuHealth(**values)


def line(kind: str, text: str, ago: float = 60, boot: int = 0, **changes: Any) -> KernelLine:
    """A line of the kernel's, `ago` seconds old, of the boot that many before this one."""
    of = f"{boot}{BOOT[1:]}" if boot else BOOT
    return KernelLine(kind=kind, text=text, unix_s=NOW - ago, **{"boot": of, **changes})


def pci(slot: str, kind: str = "nic", **changes: Any) -> PciDevice:
    """A link of 32 GT/s and 4 lanes, whole."""
    values = {
        "driver": {"gpu": "nvidia", "nic": "mlx5_core", "nvme": "nvme"}[kind],
        "speed": 32.0, "width": 4, "card_speed": 32.0, "card_width": 4, "port_speed": 32.0,
        "port_width": 4, "errors": {"fatal": 0, "nonfatal": 0, "correctable": 0}, **changes,
    }  # fmt: skip
    return PciDevice(slot=slot, kind=kind, **values)


def late_nvme(why: str) -> NvmeDisk:
    """A disk whose tool did not answer."""
    return nvme().model_copy(update={"smart": Unknown(unreadable=why)})


def nvme(state: str = "live", **smart: Any) -> NvmeDisk:
    """A disk that is well, as nvme-cli tells it."""
    values = {"source": "nvme", "warning": 0, "media_errors": 0, "used_percent": 3, "spare": 100,
              "spare_least": 10, **smart}  # fmt: skip
    model = "Samsung SSD 990 PRO 2TB"
    return NvmeDisk(name="nvme0", model=model, state=state, smart=Smart(**values))


MADE: dict[str, Callable[..., Any]] = {
    "counters": lambda **values: Counters(**values),
    "driver": lambda **values: DriverHealth(**{"module": DRIVER, "libraries": (DRIVER,), **values}),
    "gpu_health": gpu,
    "kernel_line": line,
    "nvme": nvme,
    "late_nvme": late_nvme,
    "pci": pci,
    "stuck": lambda **values: Stuck(**values),
}
