"""Cards and boards: parsers on what the real programs and files say, and on less.

The texts lie in tests/fixtures/hardware: of an emulated machine (QEMU 7.2, Debian 12, rtl8139
card), and of ethtool 6.1 (an r8169; a virtio card without Wake-on-LAN), nmcli 1.42, networkctl 252
(`n/a` is a link without systemd-networkd), dmidecode 3.5 -t 0,1,2, and efibootmgr 17 (one row with
a device path behind a tab, as before 18 with -v).
"""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wakeonlan

from node import machine
from node.core import run
from node.core.errors import CannotRead, NodeError
from schema.hardware import HardwareFacts
from tests.unit.node.support.host import Host, unsigned

RECORDED = Path(__file__).resolve().parents[3] / "fixtures" / "hardware"
SECURED = "Wake-on: gs\n\t\tSecureOn password: 00:11:22:33:44:55"
ENTRIES = {
    "0001": {"label": "ubuntu", "active": True},
    "0003": {"label": "UEFI: PXE IPv4 Realtek PCIe 5GBE Family Controller", "active": True},
    "000A": {"label": "UEFI: Built-in EFI Shell", "active": False},
}
LOADED = dict.fromkeys(machine.SLEEP, "loaded")


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
    return {n: (row["managed"], row["connection"]) for n, row in machine.nm_devices(text).items()}


@pytest.mark.parametrize(("parser", "text", "found"), [
    (machine.wol_letters, ("ethtool-r8169.txt",), ("pumbg", "d")),
    (machine.wol_letters, ("ethtool-r8169.txt", "Wake-on: d", "Wake-on: ug"), ("pumbg", "ug")),
    (machine.wol_letters, ("ethtool-r8169.txt", "Wake-on: d", SECURED), ("pumbg", "gs")),
    (machine.wol_letters, ("ethtool-8139cp.txt",), ("pumbg", "d")),
    (machine.wol_letters, ("ethtool-virtio.txt",), (None, None)),
    (managed, ("nmcli-escaped.txt",), {
        "enp5s0": (True, "Wired connection 1"), "eno1": (True, r"LAN: rack \ 2"),
        "docker0": (False, "docker0"), "enp6s0": (True, None), "lo": (False, None)}),
    (managed, ("nmcli-device.txt",), {"ens3": (True, "Wired connection 1"), "lo": (False, "lo")}),
    (managed, ("",), {}),
    (machine.networkd_links, ("networkctl-bond.txt",), {
        "lo": "unmanaged", "host0": "configured", "bond0": "configuring", "wlan0": "n/a"}),
    (machine.networkd_links, ("networkctl-list.txt",), {"lo": "unmanaged", "ens3": "configured"}),
    (machine.boot_order, ("efibootmgr.txt",),
     {"current": "0001", "order": ["0001", "0003", "000A"], "entries": ENTRIES}),
    (machine.boot_order, ("",), {"current": None, "order": [], "entries": {}}),
    (machine.rtc_battery, ("proc-driver-rtc.txt",), "okay"),
    (machine.rtc_battery, ("proc-driver-rtc.txt", "okay", "dead"), "dead"),
    (machine.rtc_battery, ("",), None),
    (machine.sleep_targets, ("systemctl-show.txt",), LOADED),
    (machine.sleep_targets, ("systemctl-show.txt", "loaded", "masked"),
     {**LOADED, "sleep.target": "masked"}),
])  # fmt: skip
def test_what_the_programs_said(
    parser: Callable[[str], Any], text: tuple[str, ...], found: object
) -> None:
    assert parser(recorded(*text)) == found


def test_a_link_has_the_manager_that_says_so() -> None:
    nm = machine.nm_devices(recorded("nmcli-escaped.txt"))
    assert nm["enp6s0"]["uuid"] is None and nm["enp5s0"]["uuid"].startswith("6a2d1e8c")
    rows = machine.networkd_links(recorded("networkctl-bond.txt"))
    assert machine._manager("host0", {}, rows) == ("networkd", "networkctl: configured")
    assert machine._manager("wlan0", {}, rows)[0] == "none"
    assert (
        machine._manager("host0", machine.nm_devices("host0:connected:u:c"), rows)[0]
        == "NetworkManager"
    )


def test_ifupdown_is_known_by_its_state(tmp_path: Path) -> None:
    laid(tmp_path, "run/network", ifstate="lo=lo\neth0=eth0\n")
    assert machine.ifupdown_links(str(tmp_path)) == {"eth0": "/run/network/ifstate"}
    assert machine.ifupdown_links(str(tmp_path / "none")) == {}


def test_the_link_file_that_udev_chose(tmp_path: Path) -> None:
    folder, default = "usr/lib/systemd/network", recorded("99-default.link")
    laid(tmp_path, folder, **{"99-default__link": default})
    about = "I:4017265\nE:ID_NET_DRIVER=r8169\nE:ID_NET_NAME=enp5s0\n"
    about += f"E:ID_NET_LINK_FILE=/{folder}/99-default.link\n"
    laid(tmp_path, "run/udev/data", n2=about, n3=recorded("udev-data-n2.txt"))
    lines = ["NamePolicy=keep kernel database onboard slot path",
             "AlternativeNamesPolicy=database onboard slot path",
             "MACAddressPolicy=persistent"]  # fmt: skip
    assert machine.link_file(2, str(tmp_path)) == (f"/{folder}/99-default.link", lines)
    ours = "/etc/systemd/network/00-rigbook-wol-ens3.link"
    assert machine.link_file(3, str(tmp_path)) == (ours, [])
    assert machine.link_file(4, str(tmp_path)) == (None, [])
    assert machine.link_section(default.replace("[Link]\n", "[Link]\nWakeOnLan=magic\n")) == lines


def test_dmidecode_and_sysfs_name_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = recorded("dmidecode-msi.txt")
    monkeypatch.setattr(machine, "asked", lambda argv: text)
    found = machine.read_board(str(tmp_path))
    assert found["name"] == "MAG Z890 TOMAHAWK WIFI (MS-7E32)"
    assert found["bios_version"] == "1.A30" and found["wake_up"] == "AC Power Restored"
    assert found["serial"] == "07E3210_P61E000001"
    laid(tmp_path, "sys/class/dmi/id", bios_version="1.A40\n")
    assert machine.read_board(str(tmp_path))["bios_version"] == "1.A40"
    monkeypatch.setattr(machine, "asked", lambda argv: None)
    assert machine.read_board(str(tmp_path))["name"] is None
    with pytest.raises(CannotRead, match="no SMBIOS here"):
        machine.read_board(str(tmp_path / "none"))
    said = machine.dmidecode_fields(recorded("dmidecode-qemu.txt"))
    assert said["System Information"]["Wake-up Type"] == "Power Switch"
    assert said["Base Board Information"]["Product Name"].startswith("MAG Z890")
    assert said["BIOS Information"]["Version"] == "1.A30"


def test_the_hardware_clock(tmp_path: Path) -> None:
    laid(tmp_path, "sys/class/rtc/rtc0", since_epoch="1795295629\n", name="rtc_cmos 00:03\n",
         wakealarm="\n")  # fmt: skip
    assert machine.read_clock(str(tmp_path)) == {"name": "rtc_cmos 00:03", "unix_s": 1795295629,
                                          "alarm": None, "battery": None}  # fmt: skip
    with pytest.raises(CannotRead, match="no hardware clock"):
        machine.read_clock(str(tmp_path / "none"))


def test_displays_and_graphics_as_sysfs_has_them(tmp_path: Path) -> None:
    laid(tmp_path, "sys/class/drm/card0-HDMI-A-1", status="connected\n", edid="\0" * 256)
    laid(tmp_path, "sys/class/drm/card1-DP-2", status="unknown\n", edid="")
    assert machine.read_displays(str(tmp_path)) == [
        {"connector": "HDMI-A-1", "status": "connected", "edid": 256},
        {"connector": "DP-2", "status": "unknown", "edid": 0},
    ]
    card = {"vendor": "0x10de\n", "device": "0x2d04\n", "boot_vga": "1\n"}
    for slot, kind in (("0000:01:00.0", "0x030000\n"), ("0000:00:1f.0", "0x060100\n")):
        laid(tmp_path, f"sys/bus/pci/devices/{slot}", **{"class": kind}, **card)
    assert machine.graphics(str(tmp_path)) == [
        {"slot": "0000:01:00.0", "vendor": "0x10de", "device": "0x2d04", "boot_vga": True}
    ]
    assert (
        machine.read_displays(str(tmp_path / "none"))
        == machine.graphics(str(tmp_path / "none"))
        == []
    )


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

    monkeypatch.setattr(machine, "run", nmcli)
    if found is None:
        assert machine._nm_rows() == {}
        return
    with pytest.raises(CannotRead, match=found):
        machine._nm_rows()


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
    assert machine.attestations() == [
        {"file": "display.json", "said": {"item": "display"}},
        {"file": "erp_disabled.json", "said": None},
    ]


# The magic packet: its bytes, as the package that operators use makes them, and bad input.

MAC = "04:7c:16:aa:bb:cc"


def test_102_bytes_as_wakeonlan_makes_them() -> None:
    told = machine.wake_packet(MAC)
    assert len(told) == 102 and told[:6] == b"\xff" * 6
    assert told[6:] == bytes.fromhex("047c16aabbcc") * 16
    assert told == wakeonlan.create_magic_packet(MAC)


@pytest.mark.parametrize("change", [
    *({"mac": mac} for mac in (
        "04:7c:16:aa:bb", "04-7c-16-aa-bb-cc", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00",
        "01:00:5e:00:00:01", "04:7c:16:aa:bb:cc\n", None)),
    {"address": "255.255.255.256"}, {"address": "host.example"}, {"port": 0}, {"port": "9"},
])  # fmt: skip
def test_bad_input_sends_nothing(host: Host, change: dict[str, Any]) -> None:
    answer = host.call("wake", {"mac": MAC, "address": "127.255.255.255", **change})
    assert answer["code"] == "bad_request", answer


def test_where_no_way_leads_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    class Nowhere(socket.socket):
        sendto = refuse

    monkeypatch.setattr(machine.socket, "socket", Nowhere)
    with pytest.raises(NodeError, match=r"no packet to 10\.9\.9\.255: Network is unreachable"):
        machine.wake({"mac": MAC, "address": "10.9.9.255"})


# The wol step: set, read again, unsigned, and given back; ethtool is a stand-in with memory.

ETHTOOL = """#!/bin/sh
# rigbook stand-in for ethtool: one card whose letters are a file
here=$(dirname "$0")
[ -e "$here/none" ] && { echo "Settings for $1:"; echo "	Link detected: yes"; exit 0; }
if [ "$1" = -s ]; then
    [ -e "$here/deaf" ] && exit 0
    [ -e "$here/refuses" ] && { echo "netlink error: Operation not supported" >&2; exit 75; }
    echo "$4" > "$here/letters"; exit 0
fi
echo "Settings for $1:"
echo "	Supports Wake-on: pumbg"
echo "	Wake-on: $(cat "$here/letters")"
"""


@pytest.fixture
def card(host: Host) -> Path:
    """A host with a card whose Wake-on-LAN is off; the folder of the stand-in."""
    host.double("ethtool", ETHTOOL)
    (host.bin / "letters").write_text("d")
    return host.bin


def apply(host: Host, **step: Any) -> dict[str, Any]:
    """An apply of one wol step."""
    request = {
        "change": {"id": "20261121T000000Z-firmware-0", "deploy": "firmware", "operator": "t"},
        "steps": [{"op": "wol", "nic": "enp5s0", "letters": "g", **step}],
    }
    return host.call("apply", request)


def letters(card: Path) -> str:
    """What is set now."""
    return (card / "letters").read_text().strip()


def test_it_is_set_told_and_given_back(host: Host, card: Path) -> None:
    assert apply(host)["steps"][0]["detail"] == "wol d -> g" and letters(card) == "g"
    assert apply(host)["changed"] is False
    (change,) = host.call("journal", {})["changes"]
    assert change["steps"][0]["pre"] == "d"
    undone = host.call("undo", {})
    assert undone["status"] == "ROLLED_BACK" and letters(card) == "d"


def test_a_later_edit_is_left(host: Host, card: Path) -> None:
    apply(host)
    (card / "letters").write_text("ug")
    assert "left as it is now" in host.call("undo", {})["steps"][0]["detail"]
    assert letters(card) == "ug"


@pytest.mark.parametrize(("flag", "words"), [
    ("refuses", "Operation not supported"), ("deaf", "afterwards ethtool says d"),
    ("none", "has no Wake-on-LAN"),
])  # fmt: skip
def test_what_does_not_work_changes_nothing(host: Host, card: Path, flag: str, words: str) -> None:
    (card / flag).touch()
    answer = apply(host)
    assert answer["code"] == "wol_failed" and words in answer["error"]
    assert "nothing was changed" in answer["error"] and letters(card) == "d"
    assert host.call("journal", {})["changes"] == []


@pytest.mark.parametrize(
    "step", [{"letters": "zz"}, {"letters": "g;id"}, {"nic": "-s"}, {"nic": 1}]
)
def test_bad_input_is_refused(host: Host, card: Path, step: dict[str, Any]) -> None:
    answer = apply(host, **step)
    assert answer["code"] == "bad_request" and letters(card) == "d"


def test_a_kill_between_intent_and_end_is_settled(host: Host, card: Path) -> None:
    apply(host)
    (path,) = (host.state / "journal").glob("*.json")
    change = unsigned(path)
    change["steps"][0]["state"] = "intent"
    path.write_text(json.dumps(change))
    assert host.call("undo", {})["status"] == "ROLLED_BACK" and letters(card) == "d"
