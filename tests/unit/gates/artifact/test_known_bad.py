"""Kernels, drivers and versions known to fail: asked of what runs, lies there, and boots."""

from __future__ import annotations

from typing import Any

import pytest

from gates.artifact.known_bad import below_gate, engine_gate
from gates.core.violation import Violation
from gates.core.waiver import apply_waivers
from gates.gate_sets import check
from gates.kernel.known_bad import boots, moves_to
from schema.core.parse import build
from schema.desired.plan import Plan
from schema.observed.kernel import KernelFacts
from schema.observed.snapshot import Unreadable
from schema.recipe.compatibility import CompatibilityTable, load_table
from tests.unit.builders import kernel_parts as k
from tests.unit.builders import snapshots as f
from tests.unit.builders import tower_rig as t
from tests.unit.builders.engine_parts import image_files
from tests.unit.builders.spark_rig import ROOT, spark_plan

TABLE = load_table(ROOT)
# `uname -r` and /proc/cmdline of DGX OS 7.6 (DSpark#259); nvidia-spark-grub-kho adds the last word
BAD, GOOD = "7.0.0-1019-nvidia", "6.17.0-1032-nvidia"
CMDLINE = f"BOOT_IMAGE=/boot/vmlinuz-{BAD} root=UUID=0 ro init_on_alloc=0 pci=pcie_bus_safe"


def row(**changes: object) -> dict[str, object]:
    """An entry as the file has it."""
    values = {"id": "one", "engine": "vllm", "versions": "==0.20.*", "verdict": "broken",
              "reason": "dies", "source": "somebody", "date": "2026-05-10"}  # fmt: skip
    return {**values, **changes}


def table(*entries: dict[str, object]) -> CompatibilityTable:
    """A table as it is loaded."""
    return build(CompatibilityTable, {"entries": list(entries)}, lambda key: "t.yaml")


def running(plan: Plan, state: Any, kernel: str = BAD, cmdline: str = CMDLINE, **more: Any) -> Any:
    """The pair on this kernel; `more` breaks another part on both nodes."""
    seen = state(plan)
    for node in seen:
        for path, value in {"identity.kernel": kernel, "identity.cmdline": cmdline, **more}.items():
            seen[node] = f.put(seen[node], path, value)
    return seen


def below(plan: Plan, seen: Any, known: CompatibilityTable = TABLE) -> list[Violation]:
    """What is said of the kernel and the driver that run."""
    return check(plan, seen, [below_gate(known)])


def test_a_kernel_that_breaks_rdma_is_known_to_containers() -> None:
    plan = spark_plan()
    one, two = below(plan, running(plan, f.healthy))
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
    assert below(plan, running(plan, f.healthy, **SILENT[name])) == []


def test_the_reports_conditions_are_the_rigs() -> None:
    """Another word that begins alike mends nothing; without RDMA there is nothing to mend."""
    plan = spark_plan()
    assert len(below(plan, running(plan, f.healthy, cmdline=f"{CMDLINE} kho=offline"))) == 2
    assert len(below(plan, running(plan, f.healthy, kernel="7.0.0-31-generic"))) == 2
    for spec in plan.specs.values():
        spec.environ["NCCL_IB_DISABLE"] = "1"
    assert below(plan, running(plan, f.healthy)) == []
    one_node = t.tower_plan()
    assert below(one_node, running(one_node, t.healthy)) == []


def test_what_the_host_cannot_say_cannot_be_ruled_out() -> None:
    plan = spark_plan()
    for broken in ({"cmdline": ""}, {"gpus": Unreadable(unreadable="nvidia-smi hangs")}):
        found = below(plan, running(plan, f.healthy, **broken))
        assert {(v.code, v.severity, v.unknown) for v in found} == {
            ("kernel-known-bad", "block", True)
        }


def test_the_stack_that_serves_is_not_stopped() -> None:
    plan = spark_plan()
    found = below(plan, running(plan, f.serving))
    assert [v.severity for v in found] == ["warn", "warn"]
    silent = check(plan, running(plan, f.serving), [below_gate(TABLE, lambda _: False)])
    assert [v.severity for v in silent] == ["block", "block"]


def test_a_driver_is_asked_about_as_a_kernel_is() -> None:
    plan = spark_plan()
    known = table(row(engine="nvidia", versions="==580.95.*", gpu=["sm_121"]))
    one, _ = below(plan, f.healthy(plan), known)
    assert (one.code, one.severity) == ("driver-known-bad", "block")
    assert "spark1 runs driver 580.95.05, which is known to fail on this rig: dies" in one.summary
    assert "install a driver" in one.remedy
    assert below(plan, f.healthy(plan), table(row(engine="nvidia", versions=">=595"))) == []
    cpu = spark_plan(recipe="tiny", profile="balanced")
    assert below(cpu, f.healthy(cpu), known) == []


def version(plan: Plan, seen: Any, known: CompatibilityTable, works: bool = False) -> Any:
    """What is said of the version that lies there."""
    return check(plan, seen, [engine_gate(known, lambda _: works)])


IMAGE = table(row(versions="==0.22.*", gpu=["sm_121"]))


def test_an_images_version_is_compared_and_one_that_is_not_told_warns() -> None:
    plan = spark_plan()
    one, _ = version(plan, f.healthy(plan), IMAGE)
    assert (one.code, one.severity) == ("version-broken", "block")
    assert "vllm 0.22.1 is in the image ghcr.io/spark-arena/" in one.summary
    assert "container.image" in one.remedy
    (said, _) = version(plan, f.healthy(plan), IMAGE, works=True)
    assert said.severity == "warn" and "verdict works" in said.remedy
    nightly = image_files(plan, "0.22.1rc1.dev134+g1234567ab.cu130")
    for files, codes in (
        (nightly, ["version-broken"] * 2),
        (image_files(plan, "0.21.0"), []),
        ((*nightly, *image_files(plan, "0.21.0")), ["version-unknown"] * 2),
        ((), ["version-unknown"] * 2),
        (Unreadable(unreadable="unknown storage driver"), ["version-unknown"] * 2),
    ):
        seen = running(plan, f.healthy, image_files=files)
        found = version(plan, seen, IMAGE)
        assert [v.code for v in found] == codes, files
        assert all("deploys/provenance.py" in v.remedy for v in found if v.unknown)
        # where nothing is known to fail, nobody has to know
        assert version(plan, seen, table()) == version(plan, seen, TABLE) == []


def test_an_image_that_is_not_there_is_another_gates() -> None:
    plan = spark_plan()
    gone = {n: f.put(shot, "docker.images", ()) for n, shot in f.healthy(plan).items()}
    mute = running(plan, f.healthy, docker=Unreadable(unreadable="no docker"))
    assert version(plan, gone, IMAGE) == version(plan, mute, IMAGE) == []


def test_a_venv_that_was_upgraded_is_told() -> None:
    """The doctor's part: after the upgrade nobody asks the gate of the upgrade any more (B1)."""
    plan = t.tower_plan()
    known = table(row(versions="==0.32.*", gpu=["cpu"]))
    (one,) = version(plan, t.healthy(plan), known)
    assert (one.code, one.node, one.severity) == ("version-broken", t.TOWER, "block")
    assert "0.32.0+cpu is installed, and known to fail" in one.summary
    assert "somebody" in one.evidence and "2026-05-10" in one.evidence
    assert "deploys/rollback.py --data backup=last" in one.remedy
    (said,) = version(plan, t.healthy(plan), known, works=True)
    assert said.severity == "warn" and "verdict works" in said.remedy
    assert version(plan, t.healthy(plan), table()) == []
    two = f.put(t.healthy(plan)[t.TOWER], "venvs.0.versions", {"vllm": ("0.32.0", "0.31.0")})
    assert version(plan, {t.TOWER: two}, known) == []


def entry(release: str, options: str | None) -> Any:
    """A menu entry of a kernel with this command line."""
    return k.entry(release).model_copy(update={"options": options})


def facts(options: str | None = CMDLINE, **changes: Any) -> KernelFacts:
    """A Spark whose GRUB would boot the new kernel."""
    menu = k.grub(
        entries=(entry(BAD, options), entry(GOOD, "ro quiet")), next=k.target(BAD),
        default=k.target(BAD),
    )  # fmt: skip
    there = tuple(k.installed(release, k.module(release)) for release in (GOOD, BAD))
    return k.facts(**{"running": GOOD, "kernels": there, "grub": menu, **changes})


def booting(kernel: KernelFacts, *asks: Any) -> list[Violation]:
    """What is said of the next boot of spark1, which runs the kernel before."""
    plan = spark_plan()
    seen = running(plan, f.healthy, kernel=GOOD, cmdline="ro quiet")
    shots = {name: k.with_kernel(shot, kernel) for name, shot in seen.items()}
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
    seen = running(plan, f.healthy, kernel=GOOD, cmdline="ro quiet")
    shots = {name: k.with_kernel(shot, facts()) for name, shot in seen.items()}
    drivers = {"spark1": "595.10", "spark2": "580.142"}
    worse = table(row(engine="nvidia", versions=">=595"))
    one, two = check(plan, shots, [moves_to(TABLE, drivers, BAD)])
    assert f"spark1 would run kernel {BAD}" in one.summary and two.node == "spark2"
    assert "DSpark#259" in one.evidence and one.severity == "block"
    (only,) = check(plan, shots, [moves_to(worse, drivers, None)])
    assert "spark1 would run driver 595.10, which is known to fail" in only.summary
    assert check(plan, shots, [moves_to(TABLE, drivers, None)]) == []


@pytest.mark.parametrize("changes", [
    {"loader": "container"}, {"grub": k.grub(next=k.target(None, "unknown", "no grub.cfg"))},
])  # fmt: skip
def test_what_boots_by_another_way_is_another_gates(changes: dict[str, Any]) -> None:
    assert booting(facts(**changes)) == []
