"""How the plan's flags count for memory and cards; the numbers: cases/memory.yaml."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from deploys.plans.firmware import Machine, can_be_set_by_us, steps_of
from deploys.plans.kernel import Trial, candidate_steps, pin_steps, pin_words
from gates import firmware
from gates.core import GIB, Violation
from gates.firmware import PROBES
from gates.gate_sets import check
from gates.gpu import cards_after, gpus_needed, memory_enough
from node.rules.engine import CONTEXT_MIB
from schema.hardware import (
    AttestationFile,
    Display,
    EfiBoot,
    EfiEntry,
    Graphics,
    HardwareFacts,
    Wol,
    checklist_for,
    checklists,
)
from schema.host import GrubDefault
from schema.plan import Plan
from schema.render_host import persistence, pin_documents
from schema.snapshot import ComputeProcess, FileState, Unreadable
from tests.unit.builders import host_parts, rigs
from tests.unit.builders.host_parts import NEW_KERNEL, OLD_KERNEL, discrete_gpu
from tests.unit.builders.rigs import ROOT, TOWER, healthy_tower, spark_plan, tower_plan

HEAD = "spark1"


def _with_flags(**flags: object) -> Plan:
    """The Sparks' plan with these flags on its head."""
    plan = spark_plan()
    spec = replace(plan.specs[HEAD], flags={**plan.specs[HEAD].flags, **flags})
    return replace(plan, specs={**plan.specs, HEAD: spec})


def test_the_profiles_utilization_counts() -> None:
    plan, half = spark_plan(), _with_flags(gpu_memory_utilization=0.5)

    def codes(plan: Plan) -> list[str]:
        seen = rigs.healthy(plan)
        for path in ("memory.available", "memory.free"):
            seen[HEAD] = rigs.put(seen[HEAD], path, 70 * GIB)
        return [v.code for v in memory_enough(plan, seen) if v.node == HEAD]

    assert codes(plan) == ["memory-short"] and codes(half) == []


@pytest.mark.parametrize(
    ("share", "free", "says"),
    [
        (0.9, 143155, None),
        # an empty card was refused at 0.996: 616 MiB of it are the driver's
        (0.997, 143155, ("warn", "needed 142726 MiB", "0.99")),
        # what the gate let pass and vLLM refused
        (0.3, 43300, ("warn", "needed 42947 MiB", "0.29")),
        (0.3, 42946, ("block", "needed 42947 MiB", "reboot spark1")),
        (0.3, 42947 + CONTEXT_MIB, None),
    ],
)
def test_a_cards_share_is_of_what_cuda_calls_its_total(
    share: float, free: int, says: tuple[str, str, str] | None
) -> None:
    """An H200's numbers (driver 580.159.04, 2026-11-22): 143771 MiB, of which CUDA sees 143155."""
    plan = _with_flags(gpu_memory_utilization=share)
    seen = rigs.healthy(plan)
    card = discrete_gpu(0, free, 143771).model_copy(update={"memory_used_mib": 143155 - free})
    seen[HEAD] = rigs.put(seen[HEAD], "gpus.gpus", (card,))
    found = [v for v in memory_enough(plan, seen) if v.node == HEAD]
    assert len(found) == (says is not None)
    if says is not None:
        severity, evidence, remedy = says
        assert found[0].severity == severity
        assert evidence in found[0].evidence and remedy in found[0].remedy


def _holder(pid: int, name: str, mib: int) -> ComputeProcess:
    return ComputeProcess(gpu_uuid="GPU-0", pid=pid, process_name=name, used_mib=mib,
                          start_ticks=1, container_id=None)  # fmt: skip


@pytest.mark.parametrize(
    ("ended", "codes", "left"),
    [
        ({HEAD: {77}}, [], None),
        # what is not ended stays, and is named; our own engine's memory comes back
        ({}, ["memory-short"], "held by: pid 77 python3 15000 MiB"),
        ({"spark2": {77}}, ["memory-short"], "sudo kill 77"),
    ],
)
def test_a_restart_counts_what_it_ends(
    ended: dict[str, set[int]], codes: list[str], left: str | None
) -> None:
    plan = spark_plan()
    seen = rigs.serving(plan)
    engines = seen[HEAD].engine_processes
    assert not isinstance(engines, Unreadable)
    own = engines[0]
    holders = (
        _holder(77, "python3", 15000),
        _holder(own.pid, "VLLM::EngineCore", 1000),
    )
    seen[HEAD] = rigs.put(seen[HEAD], "gpus.gpus", (discrete_gpu(0, 311),))
    seen[HEAD] = rigs.put(seen[HEAD], "gpus.processes", holders)
    found = [v for v in cards_after(ended)(plan, seen) if v.node == HEAD]
    assert [v.code for v in found] == codes
    assert all(f"pid {own.pid} " not in v.evidence for v in found)
    assert left is None or left in found[0].evidence + found[0].remedy


def test_a_restart_that_cannot_see_who_computes_is_refused() -> None:
    plan = spark_plan()
    seen = rigs.serving(plan)
    seen[HEAD] = rigs.put(seen[HEAD], "gpus", Unreadable(unreadable="no answer"))
    assert any(v.unknown for v in cards_after({})(plan, seen))


@pytest.mark.parametrize(("tp", "pp", "gpus"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (2, 2, 2)])
def test_ranks_are_spread_over_the_nodes_and_none_is_lost(tp: int, pp: int, gpus: int) -> None:
    wide = _with_flags(tensor_parallel_size=tp, pipeline_parallel_size=pp)
    assert gpus_needed(wide, wide.rig.head) == gpus


# The steps of a pin and of a candidate's one boot; what stands against them: cases/boot.yaml.

GONE = host_parts.target(
    NEW_KERNEL, "first", "saved_entry names x, and x is not in the menu: first entry"
)


def test_the_unit_that_falls_back_is_there_before_the_one_boot() -> None:
    *_, unit, once = candidate_steps(
        Trial(NEW_KERNEL, 1800, "change"), host_parts.kernel_facts(), {}
    )
    assert unit["op"] == "unit" and unit["enabled"] is True
    assert once == {"op": "grub", "saved": OLD_KERNEL, "next": NEW_KERNEL, "regenerate": False}


def files(release: str) -> dict[str, FileState]:
    """The pin's files as they are after it."""
    return {
        d.path: FileState(
            path=d.path, kind="file", sha256=hashlib.sha256(d.content.encode()).hexdigest(),
            size=len(d.content), mode=d.mode, uid=0, gid=0, content=d.content,
        )
        for d in pin_documents(release, host_parts.apt().pinning[release])
    }  # fmt: skip


def test_a_pin_that_is_there_has_no_steps() -> None:
    assert pin_steps(OLD_KERNEL, host_parts.grub(), host_parts.apt(), files(OLD_KERNEL)) == []
    assert pin_words(OLD_KERNEL, host_parts.grub(), host_parts.apt()) == (
        f"default kernel: {OLD_KERNEL} (saved)",
    )


def test_each_part_of_a_pin_that_is_missing_comes_back_alone() -> None:
    held = host_parts.apt(holds=())
    assert [s["op"] for s in pin_steps(OLD_KERNEL, host_parts.grub(), held, files(OLD_KERNEL))] == [
        "hold"
    ]
    once = host_parts.grub(next_entry=host_parts.path(NEW_KERNEL))
    assert [s["op"] for s in pin_steps(OLD_KERNEL, once, host_parts.apt(), files(OLD_KERNEL))] == [
        "grub"
    ]
    assert [s["op"] for s in pin_steps(OLD_KERNEL, host_parts.grub(), host_parts.apt(), {})] == [
        "file",
        "file",
        "grub",
    ]


def test_the_seeds_title_is_recognised_and_left_in_place() -> None:
    title = GrubDefault(value="Advanced options for Ubuntu>Ubuntu, with Linux " + OLD_KERNEL,
                        file="/etc/default/grub", mode="title")  # fmt: skip
    words = pin_words(
        OLD_KERNEL,
        host_parts.grub(configured=title, saves=False, default=GONE),
        host_parts.apt(holds=()),
    )
    assert f"{NEW_KERNEL} (" in words[0] and f"-> {OLD_KERNEL} (saved)" in words[0]
    assert "is a menu's title" in words[1] and "the line stays" in words[1]
    assert words[2] == f"new holds: linux-generic, linux-image-{OLD_KERNEL}"


def test_apt_leaves_the_pinned_kernel_alone() -> None:
    (_, conf) = pin_documents(OLD_KERNEL, host_parts.apt().pinning[OLD_KERNEL])
    assert conf.content.count('"^linux-image-6\\.17\\.0-22-generic$";') == 2
    assert 'Remove-Unused-Kernel-Packages "false";' in conf.content


# Hands at a board: what must be attested, when that ends, what it blocks (B6, B7, fault 38).

LISTS = checklists(ROOT)
MSI = LISTS["msi-mag-z890"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The seed's tower."""
    return tower_plan()


def found(
    plan: Plan, facts: HardwareFacts | Unreadable, now: float = host_parts.HARDWARE_NOW
) -> list[Violation]:
    """What stands against a reboot of the tower."""
    seen = {TOWER: host_parts.with_hardware(healthy_tower(plan)[TOWER], facts)}
    return check(plan, seen, firmware.rebootable(LISTS, now))


def test_a_headless_board_that_nobody_attested_is_not_rebooted(plan: Plan) -> None:
    (one,) = found(plan, host_parts.hardware_facts())
    assert (one.code, one.severity, one.node) == ("hands-needed", "block", TOWER)
    for word in ("1. display", "2. ac_power_on", "3. erp_disabled", "4. pcie_wake"):
        assert word in one.evidence
    assert "no sink on HDMI-A-1, DP-1, and no integrated graphics; never attested" in one.evidence
    assert "attest=display,ac_power_on,erp_disabled,pcie_wake --data by=YOURNAME" in one.remedy


def test_attested_it_is_silent_and_a_year_later_it_is_not(plan: Plan) -> None:
    assert found(plan, host_parts.hardware_facts(attestations=host_parts.every())) == []
    assert found(plan, host_parts.hardware_facts(attestations=host_parts.every(365))) == []
    (one,) = found(plan, host_parts.hardware_facts(attestations=host_parts.every(366)))
    assert "erp_disabled = ErP Ready = Disabled: attested by milo 366 days ago, valid for 365" in (
        one.evidence
    )


VOID: dict[str, tuple[dict[str, Any], str]] = {
    "a BIOS update": (
        {"board": host_parts.board(bios_version="1.A40")},
        "attested by milo for BIOS 1.A30; it is 1.A40 now",
    ),
    "another board": ({"board": host_parts.board(serial="X")}, "for another board (serial 07E3210"),
    "no BIOS version": (
        {"board": host_parts.board(bios_version=None)},
        "does not say its BIOS version now",
    ),
    "no SMBIOS": ({"board": Unreadable(unreadable="no SMBIOS")}, "does not say its BIOS version"),
}


@pytest.mark.parametrize("name", VOID)
def test_what_voids_an_attestation(plan: Plan, name: str) -> None:
    changes, words = VOID[name]
    (one,) = found(plan, host_parts.hardware_facts(attestations=host_parts.every(), **changes))
    assert one.severity == "block" and words in one.evidence


BROKEN = {
    "no JSON": AttestationFile(file="display.json", said=None),
    "another item": host_parts.machine_said("display", item="ac_power_on"),
    "a stray key": host_parts.machine_said("display", until="ever"),
    "a text for a number": host_parts.machine_said("display", valid_days="365"),
    "from the future": host_parts.machine_said("display", -30),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_attestation_attests_nothing(plan: Plan, name: str) -> None:
    rows = tuple(row for row in host_parts.every() if row.file != "display.json")
    (one,) = found(plan, host_parts.hardware_facts(attestations=(*rows, BROKEN[name])))
    assert one.evidence.startswith("1. display") and "2." not in one.evidence


def test_a_display_is_read_and_then_the_rest_only_warns(plan: Plan) -> None:
    shown = (Display(connector="HDMI-A-1", status="connected", edid=256),)
    (one,) = found(plan, host_parts.hardware_facts(displays=shown))
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
    assert PROBES["display"](host_parts.hardware_facts(**changes), ())[0] is answer


def test_a_machine_that_is_no_board_has_no_hands(plan: Plan) -> None:
    for kind in ("systemd-nspawn", "kvm", "docker"):
        assert found(plan, host_parts.hardware_facts(virtual=kind)) == []


@pytest.mark.parametrize(
    "facts",
    [
        Unreadable(unreadable="timed out"),
        host_parts.hardware_facts(virtual=Unreadable(unreadable="no systemd-detect-virt")),
        host_parts.hardware_facts(
            attestations=Unreadable(unreadable="/var/lib/rigbook: Permission denied")
        ),
    ],
)
def test_unknown_blocks(plan: Plan, facts: HardwareFacts | Unreadable) -> None:
    (one,) = found(plan, facts)
    assert (one.code, one.severity, one.unknown) == ("hardware-unreadable", "block", True)


def test_only_the_nodes_that_reboot_are_asked(plan: Plan) -> None:
    seen = {
        TOWER: host_parts.with_hardware(healthy_tower(plan)[TOWER], host_parts.hardware_facts())
    }
    assert check(plan, seen, firmware.rebootable(LISTS, host_parts.HARDWARE_NOW, frozenset())) == []


def state(item: str, **changes: Any) -> str:
    """How an item of the tower's list stands."""
    facts = host_parts.hardware_facts(**changes)
    cards = facts.nics if isinstance(facts.nics, tuple) else ()
    return next(
        r.state
        for r in firmware.states(MSI, facts, cards, host_parts.HARDWARE_NOW)
        if r.item.id == item
    )


PROBED: dict[str, tuple[str, dict[str, Any], str]] = {
    "armed": ("wol", {}, "ok"),
    "not armed": ("wol", {"nics": (host_parts.nic(wol=Wol(supports="pumbg", set="d")),)}, "wrong"),
    "no ethtool": ("wol", {"nics": (host_parts.nic(wol=Unreadable(unreadable="no ethtool")),)},
                   "unknown"),
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
    [("dead", 0, "wrong"), (None, 7200, "unknown"), ("okay", 400 * host_parts.DAY, "wrong")],
)
def test_the_clocks_battery(battery: str | None, off: int, wanted: str) -> None:
    clock = host_parts.hardware_facts().clock
    assert not isinstance(clock, Unreadable)
    other = clock.model_copy(
        update={"battery": battery, "unix_s": int(host_parts.HARDWARE_NOW - off)}
    )
    assert state("clock_battery", clock=other) == wanted


def test_the_doctor_names_a_card_that_could_wake_and_would_not(plan: Plan) -> None:
    for letters, count in (("d", 1), ("g", 0)):
        facts = host_parts.hardware_facts(
            nics=(host_parts.nic(wol=Wol(supports="pumbg", set=letters)),)
        )
        seen = {TOWER: host_parts.with_hardware(healthy_tower(plan)[TOWER], facts)}
        rows = check(plan, seen, [firmware.wol_unarmed])
        assert [row.code for row in rows] == ["wol-unarmed"] * count


def test_a_bond_wakes_by_its_slaves(plan: Plan) -> None:
    slaves = tuple(
        host_parts.nic(name=n, addresses=(), master="bond0") for n in ("enp5s0", "enp6s0")
    )
    facts = host_parts.hardware_facts(nics=slaves, addresses={"bond0": ("192.168.1.21/24",)})
    cards = firmware.cards_of(facts, plan.rig.node(TOWER), None)
    assert [card.name for card in cards] == ["enp5s0", "enp6s0"]


def test_a_card_that_is_not_there_is_refused(plan: Plan) -> None:
    for named, words in (("eno9", "no card eno9"), (None, "no card that carries 192.168.1.21")):
        facts = (
            host_parts.hardware_facts(addresses={})
            if named is None
            else host_parts.hardware_facts()
        )
        seen = {TOWER: host_parts.with_hardware(healthy_tower(plan)[TOWER], facts)}
        (one,) = check(plan, seen, [firmware.card_there(named, frozenset({TOWER}))])
        assert one.code == "wol-card" and words in one.summary and host_parts.MAC in one.evidence


def machine(facts: HardwareFacts) -> Machine:
    """The tower as a run sees it."""
    assert isinstance(facts.nics, tuple)
    rows = firmware.states(MSI, facts, facts.nics, host_parts.HARDWARE_NOW)
    ways = {nic.name: persistence(nic) for nic in facts.nics}
    return Machine(TOWER, facts, MSI, facts.nics, ways, rows, ())


def test_what_linux_can_set_is_no_work_for_a_person() -> None:
    off = host_parts.hardware_facts(
        nics=(host_parts.nic(wol=Wol(supports="g", set="d")),), sleep={"sleep.target": "loaded"}
    )
    rows = {row.item.id: can_be_set_by_us(machine(off), row) for row in machine(off).rows}
    assert rows["wol"] and rows["sleep_targets"] and not rows["erp_disabled"]
    steps = steps_of(machine(off), {}, frozenset())
    assert [step["op"] for step in steps] == ["file", "wol", "link", "unit"]


def test_a_card_that_cannot_wake_is_left_alone_and_is_work_for_a_person() -> None:
    unable = machine(
        host_parts.hardware_facts(nics=(host_parts.nic(wol=Wol(supports=None, set=None)),))
    )
    assert steps_of(unable, {}, frozenset()) == []
    assert not any(can_be_set_by_us(unable, row) for row in unable.rows if row.item.id == "wol")


# Hardware name of a kernel oops: NVIDIA NVIDIA_DGX_Spark/P4242, BIOS 5.36_0ACUM027 06/12/2026
SPARK = host_parts.board(
    vendor="NVIDIA", name="P4242", serial="1", system_vendor="NVIDIA",
    system_name="NVIDIA_DGX_Spark", bios_vendor="AMI", bios_version="5.36_0ACUM027",
    bios_date="06/12/2026", wake_up=None,
)  # fmt: skip


@pytest.mark.parametrize("name", ["P4242", "P4242 A01"])
def test_a_headless_spark_is_rebooted_with_nothing_attested(plan: Plan, name: str) -> None:
    """It has neither ErP nor wake by PCI-E, and POST passes without a display."""
    board = SPARK.model_copy(update={"name": name})
    assert (
        found(plan, host_parts.hardware_facts(board=board, processor="", displays=(), nics=()))
        == []
    )
    assert checklist_for(board, LISTS).name == "nvidia-dgx-spark"
    ids = {item.id for item in LISTS["nvidia-dgx-spark"].items}
    assert not ids & {"display", "erp_disabled", "pcie_wake"}


def test_the_list_is_the_boards() -> None:
    assert checklist_for(host_parts.board(vendor="ASUSTeK", name="GX10"), LISTS).name == "generic"
    assert checklist_for(host_parts.board(), LISTS) is MSI
    assert checklist_for(host_parts.board(name="ProArt X870E"), LISTS).name == "generic"
    assert checklist_for(None, LISTS).name == "generic"
