"""Cards and boards: parsers on what the real programs and files say, and on less.

The texts lie in tests/fixtures/hardware: of an emulated machine (QEMU 7.2, Debian 12, rtl8139
card), and of ethtool 6.1 (an r8169; a virtio card without Wake-on-LAN), nmcli 1.42, networkctl 252
(`n/a` is a link without systemd-networkd), dmidecode 3.5 -t 0,1,2, and efibootmgr 17 (one row with
a device path behind a tab, as before 18 with -v).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.core import run
from node.core.errors import CannotRead
from node.machine import board, nic, report
from schema.observed.hardware import HardwareFacts
from tests.unit.node.support.host import Host

RECORDED = Path(__file__).resolve().parents[3] / "fixtures" / "hardware"
SECURED = "Wake-on: gs\n\t\tSecureOn password: 00:11:22:33:44:55"
ENTRIES = {
    "0001": {"label": "ubuntu", "active": True},
    "0003": {"label": "UEFI: PXE IPv4 Realtek PCIe 5GBE Family Controller", "active": True},
    "000A": {"label": "UEFI: Built-in EFI Shell", "active": False},
}
LOADED = dict.fromkeys(board.SLEEP, "loaded")


def recorded(name: str, old: str = "", new: str = "") -> str:
    """A recorded text, with the first `old` in it replaced; without a name, none at all."""
    return (RECORDED / name).read_text().replace(old, new, 1) if name else ""


def laid(root: Path, folder: str, **contents: str) -> Path:
    """Files of a folder below a root of its own, `__` in a name for its dot; gives the root."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (root / folder / name.replace("__", ".")).write_text(text)
    return root


def managed(text: str) -> dict[str, tuple[bool, str | None]]:
    """Whether NetworkManager runs each link, and its connection."""
    return {n: (row["managed"], row["connection"]) for n, row in nic.nm_devices(text).items()}


@pytest.mark.parametrize(("parser", "text", "found"), [
    (nic.wol_letters, ("ethtool-r8169.txt",), ("pumbg", "d")),
    (nic.wol_letters, ("ethtool-r8169.txt", "Wake-on: d", "Wake-on: ug"), ("pumbg", "ug")),
    (nic.wol_letters, ("ethtool-r8169.txt", "Wake-on: d", SECURED), ("pumbg", "gs")),
    (nic.wol_letters, ("ethtool-8139cp.txt",), ("pumbg", "d")),
    (nic.wol_letters, ("ethtool-virtio.txt",), (None, None)),
    (managed, ("nmcli-escaped.txt",), {
        "enp5s0": (True, "Wired connection 1"), "eno1": (True, r"LAN: rack \ 2"),
        "docker0": (False, "docker0"), "enp6s0": (True, None), "lo": (False, None)}),
    (managed, ("nmcli-device.txt",), {"ens3": (True, "Wired connection 1"), "lo": (False, "lo")}),
    (managed, ("",), {}),
    (nic.networkd_links, ("networkctl-bond.txt",), {
        "lo": "unmanaged", "host0": "configured", "bond0": "configuring", "wlan0": "n/a"}),
    (nic.networkd_links, ("networkctl-list.txt",), {"lo": "unmanaged", "ens3": "configured"}),
    (board.boot_order, ("efibootmgr.txt",),
     {"current": "0001", "order": ["0001", "0003", "000A"], "entries": ENTRIES}),
    (board.boot_order, ("",), {"current": None, "order": [], "entries": {}}),
    (board.rtc_battery, ("proc-driver-rtc.txt",), "okay"),
    (board.rtc_battery, ("proc-driver-rtc.txt", "okay", "dead"), "dead"),
    (board.rtc_battery, ("",), None),
    (board.sleep_targets, ("systemctl-show.txt",), LOADED),
    (board.sleep_targets, ("systemctl-show.txt", "loaded", "masked"),
     {**LOADED, "sleep.target": "masked"}),
])  # fmt: skip
def test_what_the_programs_said(
    parser: Callable[[str], Any], text: tuple[str, ...], found: object
) -> None:
    assert parser(recorded(*text)) == found


def test_a_link_has_the_manager_that_says_so() -> None:
    nm = nic.nm_devices(recorded("nmcli-escaped.txt"))
    assert nm["enp6s0"]["uuid"] is None and nm["enp5s0"]["uuid"].startswith("6a2d1e8c")
    rows = nic.networkd_links(recorded("networkctl-bond.txt"))
    assert nic._manager("host0", {}, rows) == ("networkd", "networkctl: configured")
    assert nic._manager("wlan0", {}, rows)[0] == "none"
    assert nic._manager("host0", nic.nm_devices("host0:connected:u:c"), rows)[0] == "NetworkManager"


def test_ifupdown_is_known_by_its_state(tmp_path: Path) -> None:
    laid(tmp_path, "run/network", ifstate="lo=lo\neth0=eth0\n")
    assert nic.ifupdown_links(str(tmp_path)) == {"eth0": "/run/network/ifstate"}
    assert nic.ifupdown_links(str(tmp_path / "none")) == {}


def test_the_link_file_that_udev_chose(tmp_path: Path) -> None:
    folder, default = "usr/lib/systemd/network", recorded("99-default.link")
    laid(tmp_path, folder, **{"99-default__link": default})
    about = "I:4017265\nE:ID_NET_DRIVER=r8169\nE:ID_NET_NAME=enp5s0\n"
    about += f"E:ID_NET_LINK_FILE=/{folder}/99-default.link\n"
    laid(tmp_path, "run/udev/data", n2=about, n3=recorded("udev-data-n2.txt"))
    lines = ["NamePolicy=keep kernel database onboard slot path",
             "AlternativeNamesPolicy=database onboard slot path",
             "MACAddressPolicy=persistent"]  # fmt: skip
    assert nic.link_file(2, str(tmp_path)) == (f"/{folder}/99-default.link", lines)
    ours = "/etc/systemd/network/00-rigbook-wol-ens3.link"
    assert nic.link_file(3, str(tmp_path)) == (ours, [])
    assert nic.link_file(4, str(tmp_path)) == (None, [])
    assert nic.link_section(default.replace("[Link]\n", "[Link]\nWakeOnLan=magic\n")) == lines


def test_dmidecode_and_sysfs_name_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = recorded("dmidecode-msi.txt")
    monkeypatch.setattr(board, "asked", lambda argv: text)
    found = board.board(str(tmp_path))
    assert found["name"] == "MAG Z890 TOMAHAWK WIFI (MS-7E32)"
    assert found["bios_version"] == "1.A30" and found["wake_up"] == "AC Power Restored"
    assert found["serial"] == "07E3210_P61E000001"
    laid(tmp_path, "sys/class/dmi/id", bios_version="1.A40\n")
    assert board.board(str(tmp_path))["bios_version"] == "1.A40"
    monkeypatch.setattr(board, "asked", lambda argv: None)
    assert board.board(str(tmp_path))["name"] is None
    with pytest.raises(CannotRead, match="no SMBIOS here"):
        board.board(str(tmp_path / "none"))
    said = board.dmidecode_fields(recorded("dmidecode-qemu.txt"))
    assert said["System Information"]["Wake-up Type"] == "Power Switch"
    assert said["Base Board Information"]["Product Name"].startswith("MAG Z890")
    assert said["BIOS Information"]["Version"] == "1.A30"


def test_the_hardware_clock(tmp_path: Path) -> None:
    laid(tmp_path, "sys/class/rtc/rtc0", since_epoch="1795295629\n", name="rtc_cmos 00:03\n",
         wakealarm="\n")  # fmt: skip
    assert board.clock(str(tmp_path)) == {"name": "rtc_cmos 00:03", "unix_s": 1795295629,
                                          "alarm": None, "battery": None}  # fmt: skip
    with pytest.raises(CannotRead, match="no hardware clock"):
        board.clock(str(tmp_path / "none"))


def test_displays_and_graphics_as_sysfs_has_them(tmp_path: Path) -> None:
    laid(tmp_path, "sys/class/drm/card0-HDMI-A-1", status="connected\n", edid="\0" * 256)
    laid(tmp_path, "sys/class/drm/card1-DP-2", status="unknown\n", edid="")
    assert board.displays(str(tmp_path)) == [
        {"connector": "HDMI-A-1", "status": "connected", "edid": 256},
        {"connector": "DP-2", "status": "unknown", "edid": 0},
    ]
    card = {"vendor": "0x10de\n", "device": "0x2d04\n", "boot_vga": "1\n"}
    for slot, kind in (("0000:01:00.0", "0x030000\n"), ("0000:00:1f.0", "0x060100\n")):
        laid(tmp_path, f"sys/bus/pci/devices/{slot}", **{"class": kind}, **card)
    assert board.graphics(str(tmp_path)) == [
        {"slot": "0000:01:00.0", "vendor": "0x10de", "device": "0x2d04", "boot_vga": True}
    ]
    assert board.displays(str(tmp_path / "none")) == board.graphics(str(tmp_path / "none")) == []


@pytest.mark.parametrize(("rc", "found"), [
    (8, None), (10, "Error: no such device"), (None, "nmcli did not answer in 10 s"),
])  # fmt: skip
def test_a_networkmanager_that_does_not_say_is_unknown(
    monkeypatch: pytest.MonkeyPatch, rc: int | None, found: str | None
) -> None:
    def nmcli(argv: Any, timeout_s: float) -> run.Done:
        if rc is None:
            raise run.TimedOut("nmcli did not answer in 10 s")
        return run.Done(rc, "", "Error: no such device\n")

    monkeypatch.setattr(nic, "run", nmcli)
    if found is None:
        assert nic._nm_rows() == {}
        return
    with pytest.raises(CannotRead, match=found):
        nic._nm_rows()


def test_this_machine_fits_the_type(host: Host) -> None:
    answer = host.call("hardware", {})
    answer.pop("ok")
    facts = HardwareFacts.model_validate(answer)
    assert facts.virtual and facts.attestations == ()
    assert "unknown key" in host.call("hardware", {"x": 1})["error"]


def test_attestations_are_read_whole_and_broken(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid(host.state, "attestations", display__json=json.dumps({"item": "display"}),
         erp_disabled__json="{", __temp__json="{}")  # fmt: skip
    monkeypatch.setenv("RIGBOOK_STATE", str(host.state))
    assert report.attestations() == [
        {"file": "display.json", "said": {"item": "display"}},
        {"file": "erp_disabled.json", "said": None},
    ]
