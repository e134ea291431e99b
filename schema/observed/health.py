"""What a machine says of its GPUs, links, disks and kernel: the section `health` of a snapshot.

Temperatures are °C, powers W, clocks MHz. None: this card or this driver does not report it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schema.core.base import Frozen


class Unknown(Frozen):
    """A part that the host could not report, with the reason."""

    unreadable: str


class GpuHealth(Frozen):
    """A GPU as `nvidia-smi -q -x` tells it (node/health/gpus.py has the elements' names).

    `ecc_now` and `ecc_ever` are uncorrected errors since the driver's load and of its whole life;
    `margin_c` is what is left to the limit, `slow_margin_c` where it slows down; `reasons` hold the
    clock down now; `usual_limit_w` is the card's own limit, `power_limit_w` the one that is set.
    """

    bus_id: str
    name: str | None = None
    persistence: bool | None = None
    display: bool | None = None
    recovery: str | None = None
    ecc_now: int | None = None
    ecc_ever: int | None = None
    sram_over: bool | None = None
    remapped: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    reasons: tuple[str, ...] = ()
    temp_c: float | None = None
    slow_c: float | None = None
    margin_c: float | None = None
    slow_margin_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    usual_limit_w: float | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    busy_percent: int | None = None
    link_gen: int | None = None
    max_link_gen: int | None = None
    replays: int | None = None


class DriverHealth(Frozen):
    """The loaded module's version (None: none), the libraries' on disk, the CDI specs' by file."""

    module: str | None = None
    libraries: tuple[str, ...] = ()
    cdi: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class KernelLine(Frozen):
    """A line of the kernel. `number` is an Xid's, `boot` its boot's boot_id (None: unknown)."""

    kind: Literal[
        "xid", "gpu-lost", "panic", "oops", "lockup", "hung", "mce", "edac", "aer", "nvme",
        "disk", "filesystem", "nic",
    ]  # fmt: skip
    text: str
    device: str | None = None
    number: int | None = None
    boot: str | None = None
    unix_s: float | None = None


class PciDevice(Frozen):
    """A PCIe link: GT/s and lanes as they are, as the card can, as the port before it can.

    `errors` are the totals of AER since the boot, by fatal, nonfatal, correctable.
    """

    slot: str
    kind: Literal["gpu", "nic", "nvme"]
    driver: str
    speed: float | None = None
    width: int | None = None
    card_speed: float | None = None
    card_width: int | None = None
    port_speed: float | None = None
    port_width: int | None = None
    errors: dict[str, int] = Field(default_factory=dict)


class Counters(Frozen):
    """What error counters grew by in `seconds`, by `DEVICE/PORT NAME` or `LINK NAME`."""

    seconds: float = 0.0
    grew: dict[str, int] = Field(default_factory=dict)


class Smart(Frozen):
    """An NVMe disk's SMART log page, and the tool that read it."""

    source: str
    warning: int | None = None
    media_errors: int | None = None
    used_percent: int | None = None
    spare: int | None = None
    spare_least: int | None = None


class NvmeDisk(Frozen):
    """An NVMe controller; `smart` None: the host has no tool that reads it."""

    name: str
    model: str | None = None
    state: str | None = None
    smart: Smart | Unknown | None = None


class Stuck(Frozen):
    """A process that stayed in uninterruptible sleep while the snapshot was taken."""

    pid: int
    name: str


class Health(Frozen):
    """All parts. `kernel` has the journal's lines, too; `journal` says why not. `fixed` are the
    disks that nobody unplugs, `read_only` mount points whose filesystem turned read-only by itself,
    `addresses` the files that name an IPv4 address, by address.
    """

    gpus: tuple[GpuHealth, ...] | Unknown = ()
    driver: DriverHealth | Unknown = DriverHealth()
    kernel: tuple[KernelLine, ...] | Unknown = ()
    journal: Unknown | None = None
    pci: tuple[PciDevice, ...] | Unknown = ()
    counters: Counters | Unknown = Counters()
    disks: tuple[NvmeDisk, ...] | Unknown = ()
    read_only: tuple[str, ...] | Unknown = ()
    fixed: tuple[str, ...] | Unknown = ()
    addresses: dict[str, tuple[str, ...]] | Unknown = Field(default_factory=dict)
    stuck: tuple[Stuck, ...] = ()
