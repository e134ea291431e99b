"""Checklists, attestations, Wake-on-LAN's files, the operator's record: loaded and refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from operations.host import sleep_steps, wol_steps
from schema.core import SpecError
from schema.hardware import NmConnection, Wol, attestation_document, checklist_for, checklists
from schema.host import MachineRecord, Machines, machines_path, read_machines, write_machines
from schema.render_host import persistence
from schema.snapshot import FileState
from tests.unit.builders import host_parts
from tests.unit.builders.rigs import ROOT

GENERIC = (ROOT / "catalog/checklists/generic.yaml").read_text()


def lists_of(root: Path, **files: str) -> Path:
    """A catalog with these checklists."""
    folder = root / "catalog/checklists"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return root


def test_the_seeds_items_are_in_every_list_of_a_pcs_board() -> None:
    for name, made in checklists(ROOT).items():
        if name == "nvidia-dgx-spark":
            continue
        ids = {item.id for item in made.items}
        assert {"ac_power_on", "erp_disabled", "pcie_wake", "display", "smart_plug", "wol",
                "sleep_targets", "clock_battery"} <= ids  # fmt: skip
        blocking = {item.id for item in made.items if "reboot" in item.blocks}
        assert blocking == {"display", "ac_power_on", "erp_disabled", "pcie_wake"}


ONE = "title: t\nitems:\n  - {id: a1, expected: e, why: w, how: [h], valid_days: 3}\n"
BAD = {
    "no generic": ({"one": ONE + "board: {vendor: v, name: n}\n"}, "generic.yaml: is missing"),
    "stray key": ({"generic": ONE + "stray: 1\n"}, "unknown key 'stray'"),
    "neither": ({"generic": ONE.replace(", valid_days: 3", "")}, "neither read nor attested"),
    "twice": ({"generic": ONE + ONE.splitlines()[-1] + "\n"}, "a1 stands twice"),
    "no such probe": ({"generic": ONE.replace("valid_days: 3", "probe: bios")}, "probe: is 'bios'"),
    "blocks what": ({"generic": ONE.replace("valid_days: 3", "valid_days: 3, blocks: [serve]")},
                    "allowed: 'reboot'"),
    "no how": ({"generic": ONE.replace("[h]", "[]")}, "has too few entries"),
    "board": ({"generic": ONE + "board: {vendor: v, name: n}\n"}, "in every list but generic"),
    "no board": ({"generic": ONE, "other": ONE}, "in every list but generic"),
    "no YAML": ({"generic": "a: [\n"}, "line 2"),
    "days": ({"generic": ONE.replace("3}", "0}")}, "allowed: 1 or more"),
    "hostile id": ({"generic": ONE.replace("a1", "../x")}, "items[0].id"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_list_is_named_by_file_and_key(tmp_path: Path, name: str) -> None:
    files, words = BAD[name]
    with pytest.raises(SpecError) as caught:
        checklists(lists_of(tmp_path, **files))
    assert words in str(caught.value) and "catalog/checklists/" in str(caught.value)


def test_two_lists_for_one_board(tmp_path: Path) -> None:
    other = ONE + "board: {vendor: 'micro*', name: '*'}\n"
    lists = checklists(lists_of(tmp_path, generic=ONE, a=other, b=other))
    with pytest.raises(SpecError, match="fits a, b; allowed: one list"):
        checklist_for(host_parts.board(), lists)


def test_an_attestation_is_bound_to_the_bios_and_the_board() -> None:
    item = checklists(ROOT)["msi-mag-z890"].items[1]
    made = attestation_document(item, "milo", host_parts.HARDWARE_NOW, host_parts.board())
    assert made.path == "/var/lib/rigbook/attestations/ac_power_on.json" and made.mode == "0600"
    said = json.loads(made.content)
    assert (said["bios_version"], said["board_serial"]) == (host_parts.BIOS, "07E3210_P61E000001")
    with pytest.raises(ValueError, match="BIOS version"):
        attestation_document(
            item, "milo", host_parts.HARDWARE_NOW, host_parts.board(bios_version=None)
        )


WAYS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "networkd": ({}, "/etc/systemd/network/00-rigbook-wol-enp5s0.link", "WakeOnLan=magic"),
    "ifupdown": ({"manager": "ifupdown"}, "/etc/systemd/network/00-rigbook-wol-enp5s0.link",
                 "MACAddressPolicy=persistent"),
    "netplan": ({"link_file": "/run/systemd/network/10-netplan-enp5s0.link"},
                "/etc/systemd/network/00-rigbook-wol-enp5s0.link", f"MACAddress={host_parts.MAC}"),
    "an earlier file": ({"link_file": "/etc/systemd/network/00-a.link"},
                        "/etc/systemd/system/rigbook-wol-enp5s0.service",
                        "exec ethtool -s enp5s0 wol g"),
    "no udev": ({"link_file": None}, "/etc/systemd/system/rigbook-wol-enp5s0.service",
                "WantedBy=multi-user.target"),
    "NetworkManager": ({"manager": "NetworkManager"},
                       "/etc/NetworkManager/conf.d/90-rigbook-wol-enp5s0.conf",
                       f"match-device=mac:{host_parts.MAC}\nethernet.wake-on-lan=64\n"),
    "NetworkManager, default": (
        {"manager": "NetworkManager", "nm": NmConnection(connection="c", uuid="u",
                                                         wake_on_lan="default")},
        "/etc/NetworkManager/conf.d/90-rigbook-wol-enp5s0.conf", "[connection-rigbook-wol-enp5s0]"),
    "its own profile": ({"manager": "NetworkManager", "nm": NmConnection(
        connection="c", uuid="u", wake_on_lan="magic")}, None, "by its own profile"),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_who_arms_a_card_at_a_boot(name: str) -> None:
    changes, path, words = WAYS[name]
    way = persistence(host_parts.nic(**changes))
    assert way.refused is None
    assert [d.path for d in way.documents] == ([path] if path else [])
    assert words in (way.documents[0].content if way.documents else way.reader)


@pytest.mark.parametrize(("own", "words"), [("ignore", "beats a default"), ("0x8000", "beats"),
                                            (None, "does not say")])  # fmt: skip
def test_a_profile_that_says_otherwise_is_not_overridden(own: str | None, words: str) -> None:
    nm = NmConnection(connection="c", uuid="u", wake_on_lan=own)
    way = persistence(host_parts.nic(manager="NetworkManager", nm=nm))
    assert (
        way.documents == () and words in str(way.refused) and "nmcli connection" in str(way.refused)
    )


def test_our_own_link_file_is_rendered_alike_before_and_after_the_boot() -> None:
    before = persistence(host_parts.nic())
    ours = "/etc/systemd/network/00-rigbook-wol-enp5s0.link"
    assert persistence(host_parts.nic(link_file=ours)) == before


def test_a_driver_that_forgot_our_link_file_gets_a_unit_too() -> None:
    """8139cp on an emulated machine: udev took our file, and the card was not armed."""
    ours = "/etc/systemd/network/00-rigbook-wol-enp5s0.link"
    way = persistence(host_parts.nic(link_file=ours, wol=Wol(supports="pumbg", set="d")))
    assert [d.path.rpartition("/")[2] for d in way.documents] == [
        "00-rigbook-wol-enp5s0.link", "rigbook-wol-enp5s0.service"]  # fmt: skip
    assert way.unit == "rigbook-wol-enp5s0.service" and "the driver dropped it" in way.reader


@pytest.mark.parametrize("change", [{"name": "a;reboot"}, {"name": "$(id)"}, {"name": "a\nb"},
                                    {"permanent": "x"}, {"mac": "02:00\n"}])  # fmt: skip
def test_a_card_with_a_hostile_name_is_no_card(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        host_parts.nic(**change)


def test_an_armed_card_with_its_file_has_no_steps() -> None:
    way = persistence(host_parts.nic())
    (link,) = way.documents
    text = link.content
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    there = FileState(path=link.path, kind="file", size=len(text), mode="0644", uid=0,
                      gid=0, sha256=sha256, content=text)  # fmt: skip
    assert wol_steps(host_parts.nic(), way, {there.path: there}, frozenset()) == []
    off = host_parts.nic(wol=Wol(supports="g", set="d"))
    assert [s["op"] for s in wol_steps(off, way, {there.path: there}, frozenset())] == ["wol"]


def test_masked_targets_have_no_steps() -> None:
    assert sleep_steps({"sleep.target": "masked"}) == []
    assert [s["op"] for s in sleep_steps({"a.target": "loaded", "b.target": "masked"})] == [
        "link", "unit"]  # fmt: skip


RECORD = MachineRecord(
    nic="enp5s0",
    mac=host_parts.MAC,
    network="192.168.1.21/24",
    wol="g",
    able=True,
    board="b",
    display=False,
    open=(),
    seen_unix_s=1,
)


def test_the_record_is_kept_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert read_machines("lab") == Machines()
    made = Machines(nodes={"tower": RECORD})
    assert write_machines("lab", made) and not write_machines("lab", made)
    assert read_machines("lab") == made and RECORD.broadcast == "192.168.1.255"
    assert machines_path("lab").parent == tmp_path / "rigbook/machines"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert str(machines_path("lab")).endswith("/.local/state/rigbook/machines/lab.json")


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', '{"nodes": {"a": {"mac": 1}}}'])
def test_a_record_that_is_none_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    machines_path("lab").parent.mkdir(parents=True)
    machines_path("lab").write_text(text)
    with pytest.raises(SpecError, match=r"lab\.json"):
        read_machines("lab")
