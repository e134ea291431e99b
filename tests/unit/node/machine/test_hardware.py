"""Cards and boards: parsers on what the real programs and files say, and on less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.core import run
from node.core.errors import CannotRead
from node.machine import board, nic, report
from schema.observed.hardware import HardwareFacts
from tests.unit.node.support.host import Host

ROOT = Path(__file__).resolve().parents[4]
# ethtool 6.1 of an r8169 card; a card without Wake-on-LAN (virtio) has neither line.
ETHTOOL = """Settings for enp5s0:
\tSupported ports: [ TP\t MII ]
\tSupported link modes:   10baseT/Half 10baseT/Full
\tSpeed: 1000Mb/s
\tDuplex: Full
\tAuto-negotiation: on
\tSupports Wake-on: pumbg
\tWake-on: d
\tLink detected: yes
"""
VIRTIO = """Settings for eth0:
\tSupported ports: [  ]
\tSpeed: Unknown!
\tPort: Other
\tLink detected: yes
"""


def test_ethtools_letters() -> None:
    assert nic.wol_letters(ETHTOOL) == ("pumbg", "d")
    assert nic.wol_letters(ETHTOOL.replace("Wake-on: d", "Wake-on: ug")) == ("pumbg", "ug")
    assert nic.wol_letters(VIRTIO) == (None, None)
    secured = ETHTOOL.replace("Wake-on: d", "Wake-on: gs\n\t\tSecureOn password: 00:11:22:33:44:55")
    assert nic.wol_letters(secured) == ("pumbg", "gs")


# nmcli 1.42 -t -f DEVICE,STATE,CON-UUID,CONNECTION device
NMCLI = r"""enp5s0:connected:6a2d1e8c-5b4f-4c52-9b4d-0c7e2f8a1b11:Wired connection 1
eno1:connected:91f0f3a8-2f6b-4bb0-8e02-8c6f0f4d3c22:LAN\: rack \\ 2
docker0:connected (externally):c0ffee00-0000-4000-8000-000000000001:docker0
enp6s0:unavailable::
lo:unmanaged::
"""


def test_nmclis_terse_rows() -> None:
    rows = nic.nm_devices(NMCLI)
    assert {name for name, row in rows.items() if row["managed"]} == {"enp5s0", "eno1", "enp6s0"}
    assert rows["eno1"]["connection"] == r"LAN: rack \ 2"
    assert rows["enp6s0"]["uuid"] is None and rows["enp5s0"]["uuid"].startswith("6a2d1e8c")
    assert nic.nm_devices("") == {}


# networkctl 252 --no-legend list; without systemd-networkd all links are `n/a`.
NETWORKCTL = """  1 lo    loopback carrier  unmanaged
  2 host0 ether    routable configured
  3 bond0 ether    routable configuring
  4 wlan0 wlan     n/a      n/a
"""


def test_networkctls_rows() -> None:
    rows = nic.networkd_links(NETWORKCTL)
    assert rows == {"lo": "unmanaged", "host0": "configured", "bond0": "configuring",
                    "wlan0": "n/a"}  # fmt: skip
    owner = nic._manager("host0", {}, rows)
    assert owner == ("networkd", "networkctl: configured")
    assert nic._manager("wlan0", {}, rows)[0] == "none"
    assert nic._manager("host0", nic.nm_devices("host0:connected:u:c"), rows)[0] == "NetworkManager"


def test_ifupdown_is_known_by_its_state(tmp_path: Path) -> None:
    (tmp_path / "run/network").mkdir(parents=True)
    (tmp_path / "run/network/ifstate").write_text("lo=lo\neth0=eth0\n")
    assert nic.ifupdown_links(str(tmp_path)) == {"eth0": "/run/network/ifstate"}
    assert nic.ifupdown_links(str(tmp_path / "none")) == {}


DEFAULT_LINK = """#  SPDX-License-Identifier: LGPL-2.1-or-later
[Match]
OriginalName=*

[Link]
NamePolicy=keep kernel database onboard slot path
AlternativeNamesPolicy=database onboard slot path
MACAddressPolicy=persistent
"""


def test_the_link_file_that_udev_chose(tmp_path: Path) -> None:
    path = "/usr/lib/systemd/network/99-default.link"
    (tmp_path / "run/udev/data").mkdir(parents=True)
    (tmp_path / path[1:]).parent.mkdir(parents=True)
    (tmp_path / path[1:]).write_text(DEFAULT_LINK)
    about = f"I:4017265\nE:ID_NET_DRIVER=r8169\nE:ID_NET_LINK_FILE={path}\nE:ID_NET_NAME=enp5s0\n"
    (tmp_path / "run/udev/data/n2").write_text(about)
    found, lines = nic.link_file(2, str(tmp_path))
    assert found == path
    assert lines == ["NamePolicy=keep kernel database onboard slot path",
                     "AlternativeNamesPolicy=database onboard slot path",
                     "MACAddressPolicy=persistent"]  # fmt: skip
    assert nic.link_file(3, str(tmp_path)) == (None, [])
    ours = DEFAULT_LINK.replace("[Link]\n", "[Link]\nWakeOnLan=magic\n")
    assert nic.link_section(ours) == lines


# dmidecode 3.5 -t 0,1,2
DMIDECODE = """# dmidecode 3.5
Getting SMBIOS data from sysfs.
SMBIOS 3.7.0 present.

Handle 0x0000, DMI type 0, 26 bytes
BIOS Information
\tVendor: American Megatrends International, LLC.
\tVersion: 1.A30
\tRelease Date: 03/06/2026
\tCharacteristics:
\t\tPCI is supported
\tBIOS Revision: 5.35

Handle 0x0001, DMI type 1, 27 bytes
System Information
\tManufacturer: Micro-Star International Co., Ltd.
\tProduct Name: MS-7E32
\tSerial Number: To be filled by O.E.M.
\tWake-up Type: AC Power Restored

Handle 0x0002, DMI type 2, 15 bytes
Base Board Information
\tManufacturer: Micro-Star International Co., Ltd.
\tProduct Name: MAG Z890 TOMAHAWK WIFI (MS-7E32)
\tSerial Number: 07E3210_P61E000001
\tFeatures:
\t\tBoard is a hosting board
"""


def test_dmidecode_and_sysfs_name_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "asked", lambda argv: DMIDECODE)
    found = board.board(str(tmp_path))
    assert found["name"] == "MAG Z890 TOMAHAWK WIFI (MS-7E32)"
    assert found["bios_version"] == "1.A30" and found["wake_up"] == "AC Power Restored"
    assert found["serial"] == "07E3210_P61E000001"
    folder = tmp_path / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    (folder / "bios_version").write_text("1.A40\n")
    assert board.board(str(tmp_path))["bios_version"] == "1.A40"
    monkeypatch.setattr(board, "asked", lambda argv: None)
    assert board.board(str(tmp_path))["name"] is None
    with pytest.raises(CannotRead, match="no SMBIOS here"):
        board.board(str(tmp_path / "none"))


# efibootmgr 17 (without -v), and with a device path behind a tab (before 18, -v)
EFIBOOTMGR = """BootCurrent: 0001
Timeout: 1 seconds
BootOrder: 0001,0003,000A
Boot0001* ubuntu
Boot0003* UEFI: PXE IPv4 Realtek PCIe 5GBE Family Controller
Boot000A  UEFI: Built-in EFI Shell\tVenMedia(5023b95c-db26-429b-a648-bd47664c8012)
"""


def test_efibootmgrs_order() -> None:
    found = board.boot_order(EFIBOOTMGR)
    assert (found["current"], found["order"]) == ("0001", ["0001", "0003", "000A"])
    assert found["entries"]["000A"] == {"label": "UEFI: Built-in EFI Shell", "active": False}
    assert found["entries"]["0003"]["active"]
    assert board.boot_order("") == {"current": None, "order": [], "entries": {}}


RTC = """rtc_time\t: 21:15:36
rtc_date\t: 2026-11-21
alrm_time\t: 00:00:00
alarm_IRQ\t: no
24hr\t\t: yes
HPET_emulated\t: no
periodic_freq\t: 1024
batt_status\t: okay
"""


def test_the_hardware_clock(tmp_path: Path) -> None:
    assert board.rtc_battery(RTC) == "okay"
    assert board.rtc_battery(RTC.replace("okay", "dead")) == "dead"
    assert board.rtc_battery("") is None
    folder = tmp_path / "sys/class/rtc/rtc0"
    folder.mkdir(parents=True)
    (folder / "since_epoch").write_text("1795295629\n")
    (folder / "name").write_text("rtc_cmos 00:03\n")
    (folder / "wakealarm").write_text("\n")
    assert board.clock(str(tmp_path)) == {"name": "rtc_cmos 00:03", "unix_s": 1795295629,
                                          "alarm": None, "battery": None}  # fmt: skip
    with pytest.raises(CannotRead, match="no hardware clock"):
        board.clock(str(tmp_path / "none"))


def test_displays_and_graphics_as_sysfs_has_them(tmp_path: Path) -> None:
    for name, status, edid in (("card0-HDMI-A-1", "connected", 256), ("card1-DP-2", "unknown", 0)):
        folder = tmp_path / "sys/class/drm" / name
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"{status}\n")
        (folder / "edid").write_bytes(b"\0" * edid)
    assert board.displays(str(tmp_path)) == [
        {"connector": "HDMI-A-1", "status": "connected", "edid": 256},
        {"connector": "DP-2", "status": "unknown", "edid": 0},
    ]
    for slot, kind in (("0000:01:00.0", "0x030000"), ("0000:00:1f.0", "0x060100")):
        folder = tmp_path / "sys/bus/pci/devices" / slot
        folder.mkdir(parents=True)
        for name, text in (("class", kind), ("vendor", "0x10de"), ("device", "0x2d04")):
            (folder / name).write_text(f"{text}\n")
        (folder / "boot_vga").write_text("1\n")
    assert board.graphics(str(tmp_path)) == [
        {"slot": "0000:01:00.0", "vendor": "0x10de", "device": "0x2d04", "boot_vga": True}
    ]
    assert board.displays(str(tmp_path / "none")) == board.graphics(str(tmp_path / "none")) == []


SHOW = "Id=sleep.target\nLoadState=masked\n\nId=suspend.target\nLoadState=loaded\n"


def test_what_may_sleep() -> None:
    assert board.sleep_targets(SHOW) == {"sleep.target": "masked", "suspend.target": "loaded"}


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


def test_attestations_are_read_whole_and_broken(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = host.state / "attestations"
    folder.mkdir(parents=True)
    (folder / "display.json").write_text(json.dumps({"item": "display"}))
    (folder / "erp_disabled.json").write_text("{")
    (folder / ".temp.json").write_text("{}")
    monkeypatch.setenv("RIGBOOK_STATE", str(host.state))
    assert report.attestations() == [
        {"file": "display.json", "said": {"item": "display"}},
        {"file": "erp_disabled.json", "said": None},
    ]


def recorded(name: str) -> str:
    """What a program or file said on an emulated machine (QEMU 7.2, Debian 12, rtl8139 card)."""
    return (ROOT / "tests/fixtures/hardware" / name).read_text()


def test_what_a_real_kernel_and_its_tools_said(tmp_path: Path) -> None:
    assert nic.wol_letters(recorded("ethtool-8139cp.txt")) == ("pumbg", "d")
    assert nic.networkd_links(recorded("networkctl-list.txt"))["ens3"] == "configured"
    assert board.rtc_battery(recorded("proc-driver-rtc.txt")) == "okay"
    assert board.sleep_targets(recorded("systemctl-show.txt")) == dict.fromkeys(
        board.SLEEP, "loaded"
    )
    said = board.dmidecode_fields(recorded("dmidecode-qemu.txt"))
    assert said["System Information"]["Wake-up Type"] == "Power Switch"
    assert said["Base Board Information"]["Product Name"].startswith("MAG Z890")
    assert said["BIOS Information"]["Version"] == "1.A30"
    folder = tmp_path / "run/udev/data"
    folder.mkdir(parents=True)
    (folder / "n2").write_text(recorded("udev-data-n2.txt"))
    path = "/etc/systemd/network/00-rigbook-wol-ens3.link"
    assert nic.link_file(2, str(tmp_path))[0] == path
    rows = nic.nm_devices(recorded("nmcli-device.txt"))
    assert {name: row["managed"] for name, row in rows.items()} == {"ens3": True, "lo": False}


def test_it_takes_no_keys(host: Host) -> None:
    assert "unknown key" in host.call("hardware", {"x": 1})["error"]
