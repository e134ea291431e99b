"""What Linux can read of a machine: board and cards, as `node hardware` reports it, and the GPU's
driver with what apt would do for another, as `node driver` does. Sizes are bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schema.core.base import Frozen
from schema.core.types import Device
from schema.observed.kernel import KernelSnapshot
from schema.observed.snapshot import Unreadable

# What a host says of its cards goes into files of that host: no other text may come along.
HardwareAddress = Annotated[str, Field(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]


class Wol(Frozen):
    """Wake-on-LAN of a card in ethtool's letters (`g`: magic packet, `d`: none), None unnamed."""

    supports: str | None
    set: str | None

    @property
    def able(self) -> bool:
        """True when the card can wake by a magic packet."""
        return "g" in (self.supports or "")

    @property
    def armed(self) -> bool:
        """True when it would, now."""
        return "g" in (self.set or "")


class NmConnection(Frozen):
    """A card's connection in NetworkManager; `wake_on_lan` is the profile's own setting."""

    connection: str
    uuid: str
    wake_on_lan: str | None


class Nic(Frozen):
    """A network card. `link_file` is what udev chose at boot, `link_lines` its [Link] section."""

    name: Device
    mac: HardwareAddress
    permanent: HardwareAddress
    physical: bool
    driver: str | None
    master: str | None
    addresses: tuple[str, ...]
    wol: Wol | Unreadable
    manager: Literal["networkd", "NetworkManager", "ifupdown", "none"]
    manager_evidence: str
    nm: NmConnection | None
    link_file: str | None
    link_lines: tuple[str, ...]


class Board(Frozen):
    """SMBIOS names. `wake_up` started the machine last (`LAN Remote`, `AC Power Restored`)."""

    vendor: str | None
    name: str | None
    serial: str | None
    system_vendor: str | None
    system_name: str | None
    bios_vendor: str | None
    bios_version: str | None
    bios_date: str | None
    wake_up: str | None

    @property
    def title(self) -> str:
        """The board as a person calls it."""
        names = (self.vendor or self.system_vendor, self.name or self.system_name)
        return " ".join(name for name in names if name) or "a board without a name"


class Display(Frozen):
    """A connector of /sys/class/drm; `edid` is the size of what the sink says of itself."""

    connector: str
    status: str
    edid: int


class Graphics(Frozen):
    """A PCI display controller; ids as hexadecimal text (0x10de is NVIDIA)."""

    slot: str
    vendor: str
    device: str
    boot_vga: bool


class EfiEntry(Frozen):
    """An entry of the firmware's boot menu."""

    label: str
    active: bool


class EfiBoot(Frozen):
    """The firmware's boot order, and the entry that this boot came from."""

    current: str | None
    order: tuple[str, ...]
    entries: dict[str, EfiEntry]


class HardwareClock(Frozen):
    """The clock that a battery keeps; `alarm` (Unix seconds) would wake the machine."""

    name: str
    unix_s: int
    alarm: int | None
    battery: str | None


class AttestationFile(Frozen):
    """A file of /var/lib/rigbook/attestations; `said` None: it is no JSON object."""

    file: str
    said: dict[str, object] | None


class HardwareFacts(Frozen):
    """One machine. `virtual` is systemd-detect-virt's word: `none` on bare metal."""

    format: Literal[1]
    virtual: str | Unreadable
    processor: str
    nics: tuple[Nic, ...] | Unreadable
    addresses: dict[str, tuple[str, ...]] | Unreadable
    board: Board | Unreadable
    displays: tuple[Display, ...] | Unreadable
    graphics: tuple[Graphics, ...] | Unreadable
    efi: EfiBoot | Unreadable
    clock: HardwareClock | Unreadable
    clock_unix_s: float
    sleep: dict[str, str] | Unreadable
    attestations: tuple[AttestationFile, ...] | Unreadable
    took_s: float


class MachineSnapshot(KernelSnapshot):
    """A node's snapshot with its hardware; asked for where somebody's hands may be needed."""

    hardware: HardwareFacts | Unreadable


class GpuUser(Frozen):
    """A process that has a device file of the driver open."""

    pid: int
    comm: str
    unit: str | None
    container: str | None


class PackageRow(Frozen):
    """A package that apt would exchange: `old` None, it is new; `new` None, it goes.

    `kept`: where the old file comes from for the way back; `none`: from nowhere any more.
    """

    name: str
    old: str | None
    new: str | None
    arch: str | None
    old_arch: str | None
    kept: Literal["kept", "cache", "repository", "repack", "none"] | None


class AptPlan(Frozen):
    """The driver's packages, and what apt would do for the wanted version.

    `wanted` None: the lists have no such version; `available` are those that they have.
    `problem`: why apt would not, in its own words. `download` None: the lists do not say.
    """

    family: dict[str, str]
    holds: tuple[str, ...]
    wanted: str | None
    available: tuple[str, ...]
    branch: str | None
    rows: tuple[PackageRow, ...]
    problem: str | None
    download: int | None


class SigningKey(Frozen):
    """The key that DKMS signs modules with, and whether the firmware knows it (None: unknown)."""

    path: str | None
    enrolled: bool | None


class DriverFacts(Frozen):
    """A host's driver. `versions`: what programs load; `loaded`: the module in the kernel."""

    format: Literal[1]
    module: str
    versions: tuple[str, ...]
    loaded: str | None
    users: tuple[GpuUser, ...]
    apt: AptPlan | Unreadable
    dpkg: str | None
    lock: str | None
    free: int
    headers: dict[str, bool]
    signed_only: bool
    key: SigningKey
    cdi: dict[str, tuple[str, ...]]
    took_s: float


class DriverSnapshot(MachineSnapshot):
    """A node's snapshot with its kernels, its hardware and its driver."""

    driver: DriverFacts | Unreadable


def lan_network(facts: HardwareFacts, address: str) -> str | None:
    """An address with its link's prefix (`192.168.1.21/24`); None: no link has it."""
    if isinstance(facts.addresses, Unreadable):
        return None
    rows = [row for rows in facts.addresses.values() for row in rows]
    return next((row for row in rows if row.partition("/")[0] == address), None)


def lan_cards(facts: HardwareFacts, address: str) -> tuple[Nic, ...]:
    """The cards that carry an address: its own, else the slaves of the bond or bridge."""
    if isinstance(facts.nics, Unreadable) or isinstance(facts.addresses, Unreadable):
        return ()
    links = [
        name
        for name, rows in facts.addresses.items()
        if any(row.partition("/")[0] == address for row in rows)
    ]
    own = tuple(nic for nic in facts.nics if nic.name in links)
    return own or tuple(nic for nic in facts.nics if nic.master in links)
