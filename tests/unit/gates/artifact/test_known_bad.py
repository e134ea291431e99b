"""Kernels, drivers and versions known to fail: asked of what runs, lies there, and boots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gates.core import Violation, apply_waivers, blocking
from gates.gate_sets import check
from gates.known_bad import (
    RigFacts,
    below_gate,
    boots,
    compatibility,
    engine_gate,
    judge_compatibility,
    moves_to,
)
from schema.compatibility import CompatibilityTable, load_table
from schema.core import SpecError, build_parse
from schema.host import KernelFacts
from schema.plan import Plan
from schema.snapshot import Gpus, Unreadable
from tests.unit.builders import host_parts, rigs
from tests.unit.builders.engine_parts import image_files
from tests.unit.builders.rigs import ROOT, healthy, put, spark_plan

# The table of what works where, and the gate that reads it before an upgrade.

TABLE = load_table(ROOT)
# The tower of the second seed: two RTX 5060 Ti, TP 2, one machine.
TOWER = RigFacts("tower", ("sm_120",), 2, 1, "580.126.09", "6.17.0-22-generic")


def compatibility_entry(**changes: object) -> dict[str, object]:
    """An entry as the file has it."""
    return {
        "id": "one",
        "engine": "vllm",
        "versions": "==0.20.*",
        "gpu": ["sm_120"],
        "verdict": "broken",
        "reason": "dies",
        "source": "somebody",
        "date": "2026-05-10",
        **changes,
    }


def table(*entries: dict[str, object]) -> CompatibilityTable:
    """A table as it is loaded."""
    return build_parse(CompatibilityTable, {"entries": list(entries)}, lambda key: "t.yaml")


def rig(tensor_parallel: int = 2) -> Plan:
    """The two Sparks; only their GPU is said to be another one by `seen`."""
    plan = spark_plan()
    for spec in plan.specs.values():
        spec.flags["tensor_parallel_size"] = tensor_parallel
    return plan


def seen(plan: Plan, cap: str | None = "12.0") -> dict[str, Any]:
    """Healthy nodes whose GPUs have this compute capability."""
    return {name: put(shot, "gpus.gpus.0.compute_cap", cap) for name, shot in healthy(plan).items()}


@pytest.mark.parametrize(
    "version", ["0.20.0", "0.20.2", "0.20.2rc1", "0.20.2+cu130", "0.20.9.dev3"]
)
def test_the_seeds_upgrade_is_known_to_be_broken(version: str) -> None:
    """B1: every 0.20.x on SM_120 with more than one rank."""
    judged = judge_compatibility(version, TOWER, TABLE)
    assert judged.verdict == "broken" and judged.entry and judged.entry.id == "sm120-tp-0.20"
    assert str(judged.entry.date) == "2026-05-10"


@pytest.mark.parametrize(
    ("version", "facts", "verdict"),
    [
        ("0.28.0", TOWER, "works"),
        ("0.19.2rc1", TOWER, "works"),
        ("0.19.2rc1.dev134+gfe9c3d6c5", TOWER, "works"),
        ("0.19.2rc2.dev1", TOWER, "unknown"),
        ("0.21.0", TOWER, "unknown"),
        ("0.21.0rc1", TOWER, "unknown"),
        ("0.20.2", RigFacts("t", ("sm_120",), 1, 1, None, "6.1.0"), "unknown"),
        ("0.20.2", RigFacts("t", ("sm_90",), 2, 1, None, "6.1.0"), "unknown"),
        # PEP 440: a pin without a local part takes any local part.
        ("0.32.0+cpu", RigFacts("t", ("cpu",), 2, 2, None, "6.1.0-13-amd64"), "works"),
        ("0.32.0", RigFacts("t", ("cpu",), 2, 2, None, "6.1.0-13-amd64"), "works"),
    ],
)
def test_what_the_catalog_says(version: str, facts: RigFacts, verdict: str) -> None:
    """Each condition counts; what nobody reported is unknown."""
    assert judge_compatibility(version, facts, TABLE).verdict == verdict


def test_broken_blocks_and_names_source_and_date() -> None:
    plan = rig()
    found = compatibility("0.20.2", plan, seen(plan), TABLE)
    assert [(v.code, v.severity, v.node) for v in found] == [
        ("version-broken", "block", "spark1"),
        ("version-broken", "block", "spark2"),
    ]
    assert "NCCL" in found[0].summary
    assert "localfamo.us" in found[0].evidence and "2026-05-10" in found[0].evidence
    assert "sm_120, TP 2" in found[0].evidence


def test_broken_can_be_waived_with_a_reason_only() -> None:
    plan = rig()
    found = compatibility("0.20.2", plan, seen(plan), TABLE)
    left, waived = apply_waivers(found, ("version-broken",), "the vendor sent a fixed build")
    assert left == [] and waived == found
    with pytest.raises(SpecError, match="needs --data reason"):
        apply_waivers(found, ("version-broken",), None)


def test_unknown_warns_and_tells_the_last_word() -> None:
    plan = rig()
    found = compatibility("0.21.0", plan, seen(plan), TABLE)
    assert {(v.code, v.severity) for v in found} == {("version-unknown", "warn")}
    assert blocking(found) == []
    assert "has no entry" in found[0].summary and "sm120-tp2-0.28" in found[0].evidence


def test_what_works_is_no_finding() -> None:
    plan = rig()
    assert compatibility("0.28.1", plan, seen(plan), TABLE) == []


def test_a_gpu_that_does_not_say_what_it_is_blocks_where_broken_is_possible() -> None:
    """P5: what cannot be ruled out counts."""
    plan = rig()
    silent = {n: put(s, "gpus", Unreadable(unreadable="nvidia-smi hangs")) for n, s in
              healthy(plan).items()}  # fmt: skip
    for observed in (seen(plan, None), silent):
        found = compatibility("0.20.2", plan, observed, TABLE)
        assert {(v.code, v.severity, v.unknown) for v in found} == {
            ("version-broken", "block", True)
        }
        assert compatibility("0.19.0", plan, observed, TABLE)[0].code == "version-unknown"


def test_a_rig_without_gpus_is_not_asked_for_one() -> None:
    plan = spark_plan(recipe="tiny", profile="balanced")
    none = Gpus(stand_in=True, driver_version="", gpus=(), processes=())
    observed = {n: put(s, "gpus", none) for n, s in healthy(plan).items()}
    assert compatibility("0.32.0", plan, observed, TABLE) == []
    assert compatibility("0.20.2", plan, observed, TABLE)[0].code == "version-unknown"


def test_the_more_specific_entry_wins_whatever_its_date() -> None:
    rows = table(
        compatibility_entry(),
        compatibility_entry(id="two", tensor_parallel="==2", verdict="works", date="2026-05-01"),
    )
    assert judge_compatibility("0.20.2", TOWER, rows).verdict == "works"
    assert (
        judge_compatibility("0.20.2", RigFacts("t", ("sm_120",), 4, 1, None, "6"), rows).verdict
        == "broken"
    )


def test_of_equal_entries_the_later_one_wins() -> None:
    later = compatibility_entry(
        id="two", versions=">=0.20,<0.21", verdict="works", date="2026-06-01"
    )
    for rows in (table(compatibility_entry(), later), table(later, compatibility_entry())):
        assert judge_compatibility("0.20.2", TOWER, rows).verdict == "works"


def test_a_pinned_version_is_more_specific() -> None:
    rows = table(
        compatibility_entry(),
        compatibility_entry(id="two", versions="==0.20.3", verdict="works", date="2026-05-01"),
    )
    assert judge_compatibility("0.20.3", TOWER, rows).verdict == "works"
    assert judge_compatibility("0.20.2", TOWER, rows).verdict == "broken"


@pytest.mark.parametrize(
    ("condition", "facts", "holds"),
    [
        ({"driver": "<580.142"}, TOWER, True),
        ({"driver": ">=580.142"}, TOWER, False),
        ({"kernel": ">=6.17.0-23"}, TOWER, False),
        ({"kernel": "<=6.17.0-22"}, TOWER, True),
        ({"nodes": ">1"}, TOWER, False),
        ({"nodes": "==1"}, TOWER, True),
        ({"gpu": []}, TOWER, True),
    ],
)
def test_every_condition_is_compared(
    condition: dict[str, object], facts: RigFacts, holds: bool
) -> None:
    rows = table(compatibility_entry(**condition))
    assert judge_compatibility("0.20.2", facts, rows).verdict == ("broken" if holds else "unknown")


def test_an_entry_that_cannot_be_ruled_out_is_a_doubt_unless_a_better_one_holds() -> None:
    unknown_driver = RigFacts("t", ("sm_120",), 2, 1, None, "6.17.0-22-generic")
    rows = table(compatibility_entry(driver="<590"))
    assert judge_compatibility("0.20.2", unknown_driver, rows).doubts == rows.entries
    better = compatibility_entry(id="two", tensor_parallel="==2", nodes="==1", verdict="works")
    assert (
        judge_compatibility(
            "0.20.2", unknown_driver, table(compatibility_entry(driver="<590"), better)
        ).doubts
        == ()
    )


def test_contradicting_entries_are_an_error_of_the_file() -> None:
    with pytest.raises(SpecError) as caught:
        table(
            compatibility_entry(),
            compatibility_entry(id="two", versions=">=0.20.1,<0.22", verdict="works"),
        )
    (line,) = caught.value.problems
    assert "one says broken and two says works for the same case" in line
    assert "allowed: a later date, or one more condition" in line


@pytest.mark.parametrize(
    "other",
    [
        {"versions": "==0.21.*"},
        {"versions": "<0.20"},
        {"gpu": ["sm_90"]},
        {"date": "2026-05-11"},
        {"tensor_parallel": ">1"},
        {"verdict": "broken"},
        {"engine": "sglang"},
    ],
)
def test_what_cannot_meet_does_not_contradict(other: dict[str, object]) -> None:
    table(compatibility_entry(), compatibility_entry(**{"id": "two", "verdict": "works", **other}))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"versions": "0.20"}, "is not a range of versions"),
        ({"versions": ""}, "is not a range of versions"),
        ({"gpu": ["SM_120"]}, "is not an architecture"),
        ({"verdict": "fine"}, "allowed: 'works', 'broken' or 'unknown'"),
        ({"date": "May 10"}, "date"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"reason": "a\nb"}, "newline"),
        ({"source": ""}, "source"),
        ({"id": "-x"}, "is not a plain name"),
    ],
)
def test_a_wrong_entry_is_one_clear_line(changes: dict[str, object], part: str) -> None:
    with pytest.raises(SpecError) as caught:
        table(compatibility_entry(**changes))
    assert part in str(caught.value) and str(caught.value).startswith("t.yaml: ")


def test_an_id_stands_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="stands twice"):
        table(compatibility_entry(), compatibility_entry(verdict="works", date="2026-07-01"))
    with pytest.raises(SpecError, match="is not there"):
        load_table(tmp_path)


# `uname -r` and /proc/cmdline of DGX OS 7.6 (DSpark#259); nvidia-spark-grub-kho adds the last word
BAD, GOOD = "7.0.0-1019-nvidia", "6.17.0-1032-nvidia"
CMDLINE = f"BOOT_IMAGE=/boot/vmlinuz-{BAD} root=UUID=0 ro init_on_alloc=0 pci=pcie_bus_safe"


def row(**changes: object) -> dict[str, object]:
    """An entry as the file has it."""
    values = {"id": "one", "engine": "vllm", "versions": "==0.20.*", "verdict": "broken",
              "reason": "dies", "source": "somebody", "date": "2026-05-10"}  # fmt: skip
    return {**values, **changes}


def running(plan: Plan, state: Any, kernel: str = BAD, cmdline: str = CMDLINE, **more: Any) -> Any:
    """The pair on this kernel; `more` breaks another part on both nodes."""
    seen = state(plan)
    for node in seen:
        for path, value in {"identity.kernel": kernel, "identity.cmdline": cmdline, **more}.items():
            seen[node] = rigs.put(seen[node], path, value)
    return seen


def below(plan: Plan, seen: Any, known: CompatibilityTable = TABLE) -> list[Violation]:
    """What is said of the kernel and the driver that run."""
    return check(plan, seen, [below_gate(known)])


def test_a_kernel_that_breaks_rdma_is_known_to_containers() -> None:
    plan = spark_plan()
    one, two = below(plan, running(plan, rigs.healthy))
    assert (one.code, one.severity, one.node) == ("kernel-known-bad", "block", "spark1")
    assert two.node == "spark2" and not one.unknown
    assert f"spark1 runs kernel {BAD}, which is known to fail" in one.summary
    assert "ibv_reg_mr_iova2" in one.summary
    assert "DSpark#259" in one.evidence and "pcie_bus_safe" in one.evidence
    assert "without kho=off" in one.evidence
    line = "echo 'GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT kho=off\"' | sudo tee "
    assert f"on spark1: {line}/etc/default/grub.d/90-kho.cfg && sudo update-grub, " in one.remedy
    assert "deploys/reboot.py --data only=spark1 -y" in one.remedy
    assert apply_waivers([one], ("kernel-known-bad",), "it served for a week")[0] == []


SILENT: dict[str, dict[str, Any]] = {
    "mended": {"cmdline": f"{CMDLINE} kho=off"},
    "the kernel before": {"kernel": GOOD},
    "the HWE kernel before": {"kernel": "7.0.0-30-generic"},
    "another GPU": {"gpus.gpus.0.compute_cap": "12.0"},
}


@pytest.mark.parametrize("name", SILENT)
def test_what_the_report_does_not_hold_for_is_silent(name: str) -> None:
    plan = spark_plan()
    assert below(plan, running(plan, rigs.healthy, **SILENT[name])) == []


def test_the_reports_conditions_are_the_rigs() -> None:
    """Another word that begins alike mends nothing; without RDMA there is nothing to mend."""
    plan = spark_plan()
    assert len(below(plan, running(plan, rigs.healthy, cmdline=f"{CMDLINE} kho=offline"))) == 2
    assert len(below(plan, running(plan, rigs.healthy, kernel="7.0.0-31-generic"))) == 2
    for spec in plan.specs.values():
        spec.environ["NCCL_IB_DISABLE"] = "1"
    assert below(plan, running(plan, rigs.healthy)) == []
    one_node = rigs.tower_plan()
    assert below(one_node, running(one_node, rigs.healthy_tower)) == []


def test_what_the_host_cannot_say_cannot_be_ruled_out() -> None:
    plan = spark_plan()
    for broken in ({"cmdline": ""}, {"gpus": Unreadable(unreadable="nvidia-smi hangs")}):
        found = below(plan, running(plan, rigs.healthy, **broken))
        assert {(v.code, v.severity, v.unknown) for v in found} == {
            ("kernel-known-bad", "block", True)
        }


def test_the_stack_that_serves_is_not_stopped() -> None:
    plan = spark_plan()
    found = below(plan, running(plan, rigs.serving))
    assert [v.severity for v in found] == ["warn", "warn"]
    silent = check(plan, running(plan, rigs.serving), [below_gate(TABLE, lambda _: False)])
    assert [v.severity for v in silent] == ["block", "block"]


def test_a_driver_is_asked_about_as_a_kernel_is() -> None:
    plan = spark_plan()
    known = table(row(engine="nvidia", versions="==580.95.*", gpu=["sm_121"]))
    one, _ = below(plan, rigs.healthy(plan), known)
    assert (one.code, one.severity) == ("driver-known-bad", "block")
    assert "spark1 runs driver 580.95.05, which is known to fail on this rig: dies" in one.summary
    assert "install a driver" in one.remedy
    assert below(plan, rigs.healthy(plan), table(row(engine="nvidia", versions=">=595"))) == []
    cpu = spark_plan(recipe="tiny", profile="balanced")
    assert below(cpu, rigs.healthy(cpu), known) == []


def version(plan: Plan, seen: Any, known: CompatibilityTable, works: bool = False) -> Any:
    """What is said of the version that lies there."""
    return check(plan, seen, [engine_gate(known, lambda _: works)])


IMAGE = table(row(versions="==0.22.*", gpu=["sm_121"]))


def test_an_images_version_is_compared_and_one_that_is_not_told_warns() -> None:
    plan = spark_plan()
    one, _ = version(plan, rigs.healthy(plan), IMAGE)
    assert (one.code, one.severity) == ("version-broken", "block")
    assert "vllm 0.22.1 is in the image ghcr.io/spark-arena/" in one.summary
    assert "container.image" in one.remedy
    (said, _) = version(plan, rigs.healthy(plan), IMAGE, works=True)
    assert said.severity == "warn" and "verdict works" in said.remedy
    nightly = image_files(plan, "0.22.1rc1.dev134+g1234567ab.cu130")
    for files, codes in (
        (nightly, ["version-broken"] * 2),
        (image_files(plan, "0.21.0"), []),
        ((*nightly, *image_files(plan, "0.21.0")), ["version-unknown"] * 2),
        ((), ["version-unknown"] * 2),
        (Unreadable(unreadable="unknown storage driver"), ["version-unknown"] * 2),
    ):
        seen = running(plan, rigs.healthy, image_files=files)
        found = version(plan, seen, IMAGE)
        assert [v.code for v in found] == codes, files
        assert all("deploys/provenance.py" in v.remedy for v in found if v.unknown)
        # where nothing is known to fail, nobody has to know
        assert version(plan, seen, table()) == version(plan, seen, TABLE) == []


def test_an_image_that_is_not_there_is_another_gates() -> None:
    plan = spark_plan()
    gone = {n: rigs.put(shot, "docker.images", ()) for n, shot in rigs.healthy(plan).items()}
    mute = running(plan, rigs.healthy, docker=Unreadable(unreadable="no docker"))
    assert version(plan, gone, IMAGE) == version(plan, mute, IMAGE) == []


def test_a_venv_that_was_upgraded_is_told() -> None:
    """The doctor's part: after the upgrade nobody asks the gate of the upgrade any more (B1)."""
    plan = rigs.tower_plan()
    known = table(row(versions="==0.32.*", gpu=["cpu"]))
    (one,) = version(plan, rigs.healthy_tower(plan), known)
    assert (one.code, one.node, one.severity) == ("version-broken", rigs.TOWER, "block")
    assert "0.32.0+cpu is installed, and known to fail" in one.summary
    assert "somebody" in one.evidence and "2026-05-10" in one.evidence
    assert "deploys/rollback.py --data backup=last" in one.remedy
    (said,) = version(plan, rigs.healthy_tower(plan), known, works=True)
    assert said.severity == "warn" and "verdict works" in said.remedy
    assert version(plan, rigs.healthy_tower(plan), table()) == []
    two = rigs.put(
        rigs.healthy_tower(plan)[rigs.TOWER], "venvs.0.versions", {"vllm": ("0.32.0", "0.31.0")}
    )
    assert version(plan, {rigs.TOWER: two}, known) == []


def entry(release: str, options: str | None) -> Any:
    """A menu entry of a kernel with this command line."""
    return host_parts.entry(release).model_copy(update={"options": options})


def facts(options: str | None = CMDLINE, **changes: Any) -> KernelFacts:
    """A Spark whose GRUB would boot the new kernel."""
    menu = host_parts.grub(
        entries=(entry(BAD, options), entry(GOOD, "ro quiet")), next=host_parts.target(BAD),
        default=host_parts.target(BAD),
    )  # fmt: skip
    there = tuple(
        host_parts.installed(release, host_parts.module(release)) for release in (GOOD, BAD)
    )
    return host_parts.kernel_facts(**{"running": GOOD, "kernels": there, "grub": menu, **changes})


def booting(kernel: KernelFacts, *asks: Any) -> list[Violation]:
    """What is said of the next boot of spark1, which runs the kernel before."""
    plan = spark_plan()
    seen = running(plan, rigs.healthy, kernel=GOOD, cmdline="ro quiet")
    shots = {name: host_parts.with_kernel(shot, kernel) for name, shot in seen.items()}
    return check(plan, shots, [boots(TABLE, *asks)])


def test_a_kernel_is_asked_about_before_a_reboot_and_a_pin() -> None:
    """What runs is well; what boots next is not, by its own command line."""
    one, _ = booting(facts())
    assert (one.code, one.severity) == ("kernel-known-bad", "block")
    assert f"spark1 would boot next kernel {BAD}, which is known to fail" in one.summary
    assert "sudo update-grub, then run this again" in one.remedy
    assert booting(facts(f"{CMDLINE} kho=off")) == []
    assert [v.unknown for v in booting(facts(None))] == [True, True]
    only = frozenset({"spark2"})
    assert [v.node for v in booting(facts(), None, only)] == ["spark2"]
    (pin,) = booting(facts(), BAD, only)
    assert f"spark2 would pin kernel {BAD}" in pin.summary
    assert booting(facts(), GOOD, only) == booting(facts(), "current", only) == []


def test_a_driver_and_a_kernel_that_are_to_come() -> None:
    """Neither runs yet: the driver of the lists, and the kernel that it is to be booted with."""
    plan = spark_plan()
    seen = running(plan, rigs.healthy, kernel=GOOD, cmdline="ro quiet")
    shots = {name: host_parts.with_kernel(shot, facts()) for name, shot in seen.items()}
    drivers = {"spark1": "595.10", "spark2": "580.142"}
    worse = table(row(engine="nvidia", versions=">=595"))
    one, two = check(plan, shots, [moves_to(TABLE, drivers, BAD)])
    assert f"spark1 would run kernel {BAD}" in one.summary and two.node == "spark2"
    assert "DSpark#259" in one.evidence and one.severity == "block"
    (only,) = check(plan, shots, [moves_to(worse, drivers, None)])
    assert "spark1 would run driver 595.10, which is known to fail" in only.summary
    assert check(plan, shots, [moves_to(TABLE, drivers, None)]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"loader": "container"},
        {"grub": host_parts.grub(next=host_parts.target(None, "unknown", "no grub.cfg"))},
    ],
)
def test_what_boots_by_another_way_is_another_gates(changes: dict[str, Any]) -> None:
    assert booting(facts(**changes)) == []
