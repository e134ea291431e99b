"""Hardware facts for the tests: the seed's tower, headless, its card armed, nothing attested."""

from __future__ import annotations

from typing import Any

from schema.machine.attestation import Attestation
from schema.observed.hardware import (
    AttestationFile,
    Board,
    Display,
    EfiBoot,
    EfiEntry,
    Graphics,
    HardwareClock,
    HardwareFacts,
    MachineSnapshot,
    Nic,
    Wol,
)
from schema.observed.snapshot import NodeSnapshot, Unreadable

NOW = 1_790_000_000.0
MAC = "04:7c:16:aa:bb:cc"
BIOS = "1.A30"
DAY = 86400


def nic(**changes: Any) -> Nic:
    """The tower's card, run by systemd-networkd."""
    values = {
        "name": "enp5s0", "mac": MAC, "permanent": MAC, "physical": True, "driver": "r8169",
        "master": None, "addresses": ("192.168.1.21/24",), "wol": Wol(supports="pumbg", set="g"),
        "manager": "networkd", "manager_evidence": "networkctl: configured", "nm": None,
        "link_file": "/usr/lib/systemd/network/99-default.link",
        "link_lines": ("NamePolicy=keep kernel database onboard slot path",
                       "MACAddressPolicy=persistent"), **changes,
    }  # fmt: skip
    return Nic(**values)


def board(**changes: Any) -> Board:
    """The seed's board."""
    values = {
        "vendor": "Micro-Star International Co., Ltd.", "name": "MAG Z890 TOMAHAWK WIFI (MS-7E32)",
        "serial": "07E3210_P61E000001", "system_vendor": "Micro-Star International Co., Ltd.",
        "system_name": "MS-7E32", "bios_vendor": "American Megatrends International, LLC.",
        "bios_version": BIOS, "bios_date": "03/06/2026", "wake_up": "Power Switch", **changes,
    }  # fmt: skip
    return Board(**values)


def said(item: str, age_days: float = 1, /, **changes: Any) -> AttestationFile:
    """An attestation of an item, made `age_days` ago on the seed's board."""
    made = Attestation(
        format=1, item=item, by="milo", at_unix_s=int(NOW - age_days * DAY), valid_days=365,
        bios_version=BIOS, board_serial="07E3210_P61E000001", board="the tower's",
    )  # fmt: skip
    return AttestationFile(file=f"{item}.json", said={**made.model_dump(), **changes})


def every(age_days: float = 1, **changes: Any) -> tuple[AttestationFile, ...]:
    """All items that a person can attest."""
    names = ("display", "ac_power_on", "erp_disabled", "pcie_wake", "smart_plug")
    return tuple(said(name, age_days, **changes) for name in names)


def facts(**changes: Any) -> HardwareFacts:
    """The whole machine: two discrete cards without a display, no integrated graphics."""
    values = {
        "format": 1, "virtual": "none", "processor": "Intel(R) Core(TM) Ultra 7 265F",
        "nics": (nic(),), "addresses": {"lo": ("127.0.0.1/8",), "enp5s0": ("192.168.1.21/24",)},
        "board": board(),
        "displays": (Display(connector="HDMI-A-1", status="disconnected", edid=0),
                     Display(connector="DP-1", status="disconnected", edid=0)),
        "graphics": (Graphics(slot="0000:01:00.0", vendor="0x10de", device="0x2d04",
                              boot_vga=True),),
        "efi": EfiBoot(current="0001", order=("0001", "0003"), entries={
            "0001": EfiEntry(label="ubuntu", active=True),
            "0003": EfiEntry(label="UEFI: PXE IPv4", active=True)}),
        "clock": HardwareClock(name="rtc_cmos", unix_s=int(NOW), alarm=None, battery="okay"),
        "clock_unix_s": NOW, "sleep": {"sleep.target": "masked", "suspend.target": "masked"},
        "attestations": (), "took_s": 0.1, **changes,
    }  # fmt: skip
    return HardwareFacts(**values)


def with_hardware(snapshot: NodeSnapshot, hardware: HardwareFacts | Unreadable) -> MachineSnapshot:
    """The snapshot with hardware facts."""
    values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
    kernel = getattr(snapshot, "kernel", Unreadable(unreadable="not asked"))
    return MachineSnapshot(**values, kernel=kernel, hardware=hardware)
