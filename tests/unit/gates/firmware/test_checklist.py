"""Hands at a board: what must be attested, when that ends, what it blocks (B6, B7, fault 38)."""

from __future__ import annotations

from typing import Any

import pytest

from deploys.procedures.host.firmware import steps_of
from deploys.procedures.host.firmware_report import Machine, can_be_set_by_us
from gates.core.violation import Violation
from gates.firmware import checklist as g
from gates.firmware.probes import PROBES
from gates.gate_sets import check
from schema.desired.plan import Plan
from schema.machine.checklist import checklist_for, checklists
from schema.observed.hardware import (
    AttestationFile,
    Display,
    EfiBoot,
    EfiEntry,
    Graphics,
    HardwareFacts,
    Wol,
)
from schema.observed.snapshot import Unreadable
from schema.render.wake_on_lan_files import persistence
from tests.unit.builders import machine_parts as m
from tests.unit.builders.spark_rig import ROOT
from tests.unit.builders.tower_rig import TOWER, healthy, tower_plan

LISTS = checklists(ROOT)
MSI = LISTS["msi-mag-z890"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The seed's tower."""
    return tower_plan()


def found(plan: Plan, facts: HardwareFacts | Unreadable, now: float = m.NOW) -> list[Violation]:
    """What stands against a reboot of the tower."""
    seen = {TOWER: m.with_hardware(healthy(plan)[TOWER], facts)}
    return check(plan, seen, g.rebootable(LISTS, now))


def test_a_headless_board_that_nobody_attested_is_not_rebooted(plan: Plan) -> None:
    (one,) = found(plan, m.facts())
    assert (one.code, one.severity, one.node) == ("hands-needed", "block", TOWER)
    for word in ("1. display", "2. ac_power_on", "3. erp_disabled", "4. pcie_wake"):
        assert word in one.evidence
    assert "no sink on HDMI-A-1, DP-1, and no integrated graphics; never attested" in one.evidence
    assert "attest=display,ac_power_on,erp_disabled,pcie_wake --data by=YOURNAME" in one.remedy


def test_attested_it_is_silent_and_a_year_later_it_is_not(plan: Plan) -> None:
    assert found(plan, m.facts(attestations=m.every())) == []
    assert found(plan, m.facts(attestations=m.every(365))) == []
    (one,) = found(plan, m.facts(attestations=m.every(366)))
    assert "erp_disabled = ErP Ready = Disabled: attested by milo 366 days ago, valid for 365" in (
        one.evidence
    )


VOID: dict[str, tuple[dict[str, Any], str]] = {
    "a BIOS update": ({"board": m.board(bios_version="1.A40")},
                      "attested by milo for BIOS 1.A30; it is 1.A40 now"),
    "another board": ({"board": m.board(serial="X")}, "for another board (serial 07E3210"),
    "no BIOS version": ({"board": m.board(bios_version=None)}, "does not say its BIOS version now"),
    "no SMBIOS": ({"board": Unreadable(unreadable="no SMBIOS")}, "does not say its BIOS version"),
}  # fmt: skip


@pytest.mark.parametrize("name", VOID)
def test_what_voids_an_attestation(plan: Plan, name: str) -> None:
    changes, words = VOID[name]
    (one,) = found(plan, m.facts(attestations=m.every(), **changes))
    assert one.severity == "block" and words in one.evidence


BROKEN = {
    "no JSON": AttestationFile(file="display.json", said=None),
    "another item": m.said("display", item="ac_power_on"),
    "a stray key": m.said("display", until="ever"),
    "a text for a number": m.said("display", valid_days="365"),
    "from the future": m.said("display", -30),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_attestation_attests_nothing(plan: Plan, name: str) -> None:
    rows = tuple(row for row in m.every() if row.file != "display.json")
    (one,) = found(plan, m.facts(attestations=(*rows, BROKEN[name])))
    assert one.evidence.startswith("1. display") and "2." not in one.evidence


def test_a_display_is_read_and_then_the_rest_only_warns(plan: Plan) -> None:
    shown = (Display(connector="HDMI-A-1", status="connected", edid=256),)
    (one,) = found(plan, m.facts(displays=shown))
    assert one.severity == "warn" and "display" not in one.evidence


SEEN: dict[str, tuple[dict[str, Any], bool | None]] = {
    "integrated": ({"graphics": (Graphics(slot="0000:00:02.0", vendor="0x8086", device="0x7d67",
                                          boot_vga=True),)}, True),
    "Arc behind a bridge": ({"graphics": (Graphics(slot="0000:03:00.0", vendor="0x8086",
                                                   device="0x56a0", boot_vga=True),)}, False),
    "AMD APU": ({"processor": "AMD Ryzen 7 8700G w/ Radeon 780M Graphics",
                 "graphics": (Graphics(slot="0000:0b:00.0", vendor="0x1002", device="0x15bf",
                                       boot_vga=True),)}, True),
    "management controller": ({"graphics": (Graphics(slot="0000:04:00.0", vendor="0x1a03",
                                                     device="0x2000", boot_vga=True),)}, True),
    "no connector known": ({"displays": ()}, None),
    "unreadable": ({"displays": Unreadable(unreadable="denied")}, None),
    "none": ({}, False),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_what_counts_as_something_for_post_to_show(name: str) -> None:
    changes, answer = SEEN[name]
    assert PROBES["display"](m.facts(**changes), ())[0] is answer


def test_a_machine_that_is_no_board_has_no_hands(plan: Plan) -> None:
    for kind in ("systemd-nspawn", "kvm", "docker"):
        assert found(plan, m.facts(virtual=kind)) == []


@pytest.mark.parametrize(
    "facts",
    [
        Unreadable(unreadable="timed out"),
        m.facts(virtual=Unreadable(unreadable="no systemd-detect-virt")),
        m.facts(attestations=Unreadable(unreadable="/var/lib/rigbook: Permission denied")),
    ],
)
def test_unknown_blocks(plan: Plan, facts: HardwareFacts | Unreadable) -> None:
    (one,) = found(plan, facts)
    assert (one.code, one.severity, one.unknown) == ("hardware-unreadable", "block", True)


def test_only_the_nodes_that_reboot_are_asked(plan: Plan) -> None:
    seen = {TOWER: m.with_hardware(healthy(plan)[TOWER], m.facts())}
    assert check(plan, seen, g.rebootable(LISTS, m.NOW, frozenset())) == []


def state(item: str, **changes: Any) -> str:
    """How an item of the tower's list stands."""
    facts = m.facts(**changes)
    cards = facts.nics if isinstance(facts.nics, tuple) else ()
    return next(r.state for r in g.states(MSI, facts, cards, m.NOW) if r.item.id == item)


PROBED: dict[str, tuple[str, dict[str, Any], str]] = {
    "armed": ("wol", {}, "ok"),
    "not armed": ("wol", {"nics": (m.nic(wol=Wol(supports="pumbg", set="d")),)}, "wrong"),
    "no ethtool": ("wol", {"nics": (m.nic(wol=Unreadable(unreadable="no ethtool")),)}, "unknown"),
    "no card": ("wol", {"nics": ()}, "unknown"),
    "disk first": ("boot_order", {}, "ok"),
    "PXE first": ("boot_order", {"efi": EfiBoot(current="0001", order=("0003", "0001"), entries={
        "0001": EfiEntry(label="ubuntu", active=True),
        "0003": EfiEntry(label="PXE", active=True)})}, "wrong"),
    "PXE first, not active": ("boot_order", {"efi": EfiBoot(
        current="0001", order=("0003", "0001"), entries={
            "0001": EfiEntry(label="ubuntu", active=True),
            "0003": EfiEntry(label="PXE", active=False)})}, "ok"),
    "no UEFI": ("boot_order", {"efi": Unreadable(unreadable="not booted by UEFI")}, "unknown"),
    "may sleep": ("sleep_targets", {"sleep": {"sleep.target": "loaded"}}, "wrong"),
    "battery": ("clock_battery", {}, "ok"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBED)
def test_what_linux_reads(name: str) -> None:
    item, changes, wanted = PROBED[name]
    assert state(item, **changes) == wanted


@pytest.mark.parametrize(
    ("battery", "off", "wanted"),
    [("dead", 0, "wrong"), (None, 7200, "unknown"), ("okay", 400 * m.DAY, "wrong")],
)
def test_the_clocks_battery(battery: str | None, off: int, wanted: str) -> None:
    clock = m.facts().clock
    assert not isinstance(clock, Unreadable)
    other = clock.model_copy(update={"battery": battery, "unix_s": int(m.NOW - off)})
    assert state("clock_battery", clock=other) == wanted


def test_the_doctor_names_a_card_that_could_wake_and_would_not(plan: Plan) -> None:
    for letters, count in (("d", 1), ("g", 0)):
        facts = m.facts(nics=(m.nic(wol=Wol(supports="pumbg", set=letters)),))
        seen = {TOWER: m.with_hardware(healthy(plan)[TOWER], facts)}
        rows = check(plan, seen, [g.wol_unarmed])
        assert [row.code for row in rows] == ["wol-unarmed"] * count


def test_a_bond_wakes_by_its_slaves(plan: Plan) -> None:
    slaves = tuple(m.nic(name=n, addresses=(), master="bond0") for n in ("enp5s0", "enp6s0"))
    facts = m.facts(nics=slaves, addresses={"bond0": ("192.168.1.21/24",)})
    cards = g.cards_of(facts, plan.rig.node(TOWER), None)
    assert [card.name for card in cards] == ["enp5s0", "enp6s0"]


def test_a_card_that_is_not_there_is_refused(plan: Plan) -> None:
    for named, words in (("eno9", "no card eno9"), (None, "no card that carries 192.168.1.21")):
        facts = m.facts(addresses={}) if named is None else m.facts()
        seen = {TOWER: m.with_hardware(healthy(plan)[TOWER], facts)}
        (one,) = check(plan, seen, [g.card_there(named, frozenset({TOWER}))])
        assert one.code == "wol-card" and words in one.summary and m.MAC in one.evidence


def machine(facts: HardwareFacts) -> Machine:
    """The tower as a run sees it."""
    assert isinstance(facts.nics, tuple)
    rows = g.states(MSI, facts, facts.nics, m.NOW)
    ways = {nic.name: persistence(nic) for nic in facts.nics}
    return Machine(TOWER, facts, MSI, facts.nics, ways, rows, ())


def test_what_linux_can_set_is_no_work_for_a_person() -> None:
    off = m.facts(nics=(m.nic(wol=Wol(supports="g", set="d")),), sleep={"sleep.target": "loaded"})
    rows = {row.item.id: can_be_set_by_us(machine(off), row) for row in machine(off).rows}
    assert rows["wol"] and rows["sleep_targets"] and not rows["erp_disabled"]
    steps = steps_of(machine(off), {}, frozenset())
    assert [step["op"] for step in steps] == ["file", "wol", "link", "unit"]


def test_a_card_that_cannot_wake_is_left_alone_and_is_work_for_a_person() -> None:
    unable = machine(m.facts(nics=(m.nic(wol=Wol(supports=None, set=None)),)))
    assert steps_of(unable, {}, frozenset()) == []
    assert not any(can_be_set_by_us(unable, row) for row in unable.rows if row.item.id == "wol")


# Hardware name of a kernel oops: NVIDIA NVIDIA_DGX_Spark/P4242, BIOS 5.36_0ACUM027 06/12/2026
SPARK = m.board(
    vendor="NVIDIA", name="P4242", serial="1", system_vendor="NVIDIA",
    system_name="NVIDIA_DGX_Spark", bios_vendor="AMI", bios_version="5.36_0ACUM027",
    bios_date="06/12/2026", wake_up=None,
)  # fmt: skip


@pytest.mark.parametrize("name", ["P4242", "P4242 A01"])
def test_a_headless_spark_is_rebooted_with_nothing_attested(plan: Plan, name: str) -> None:
    """It has neither ErP nor wake by PCI-E, and POST passes without a display."""
    board = SPARK.model_copy(update={"name": name})
    assert found(plan, m.facts(board=board, processor="", displays=(), nics=())) == []
    assert checklist_for(board, LISTS).name == "nvidia-dgx-spark"
    ids = {item.id for item in LISTS["nvidia-dgx-spark"].items}
    assert not ids & {"display", "erp_disabled", "pcie_wake"}


def test_the_list_is_the_boards() -> None:
    assert checklist_for(m.board(vendor="ASUSTeK", name="GX10"), LISTS).name == "generic"
    assert checklist_for(m.board(), LISTS) is MSI
    assert checklist_for(m.board(name="ProArt X870E"), LISTS).name == "generic"
    assert checklist_for(None, LISTS).name == "generic"
