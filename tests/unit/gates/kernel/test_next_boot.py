"""The next boot: which kernel, with its driver or not, and what a pin must find (B4, 34, 35)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from deploys.procedures.host.kernel import Want, candidate_steps, pin_steps, pin_words
from gates.core.check import Gate
from gates.core.violation import Violation
from gates.doctor.examine import examine
from gates.gate_sets import check
from gates.kernel import next_boot
from gates.kernel.pin import bootable_once, pinnable
from schema.desired.plan import Plan
from schema.observed.files import FileState
from schema.observed.kernel import GrubDefault, KernelFacts
from schema.observed.snapshot import Unreadable
from schema.render.kernel_files import pin_documents
from tests.unit.builders import kernel_parts as k
from tests.unit.builders import snapshots as f
from tests.unit.builders.kernel_parts import NEW, OLD
from tests.unit.builders.spark_rig import spark_plan

HEAD, WORKER = "spark1", "spark2"
STAGED = k.grub(
    configured=GrubDefault(value="0", file="/etc/default/grub", mode="index"),
    saved_entry=None, saves=False, ours=False,
    next=k.target(NEW, "menu", "grub.cfg's default is 0"),
    default=k.target(NEW, "menu", "grub.cfg's default is 0"),
)  # fmt: skip
GONE = k.target(NEW, "first", "saved_entry names x, and x is not in the menu: first entry")


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The seed's rig."""
    return spark_plan()


def found(plan: Plan, facts: KernelFacts | Unreadable, gates: Sequence[Gate]) -> list[Violation]:
    """What the gates say when the head has these facts and the worker is well."""
    seen = f.healthy(plan)
    both = {HEAD: k.with_kernel(seen[HEAD], facts), WORKER: k.with_kernel(seen[WORKER], k.facts())}
    return check(plan, both, gates)


def test_a_pinned_kernel_with_its_driver_is_silent(plan: Plan) -> None:
    assert found(plan, k.facts(), next_boot.BOOT) == []


def test_the_dreaded_evening(plan: Plan) -> None:
    (one,) = found(plan, k.facts(grub=STAGED), next_boot.BOOT)
    assert (one.code, one.node, one.severity) == ("boot-no-driver", HEAD, "block")
    assert NEW in one.summary and f"no nvidia module for {NEW}" in one.summary
    assert "grub.cfg's default is 0" in one.evidence
    assert one.remedy == "pyinfra INVENTORY deploys/kernel.py --data kernel=current -y"


MODULES: dict[str, tuple[dict[str, Any], str]] = {
    "another version": (
        {"kernels": (k.installed(OLD, k.module(OLD, "580.142")),)}, "is 580.142, programs load"),
    "of another kernel": ({"kernels": (k.installed(OLD, k.module(NEW)),)}, "was built for"),
    "no library": ({"user_driver": ()}, "the driver that programs load is unknown"),
    "not signed": ({"secure_boot": True}, "is not signed"),
    "dkms says why": (
        {"kernels": (k.installed(OLD, None, dkms=("nvidia/580: added",)),)}, "nvidia/580: added"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_driver_that_does_not_fit(plan: Plan, name: str) -> None:
    changes, words = MODULES[name]
    (one,) = found(plan, k.facts(**changes), next_boot.BOOT)
    assert one.code == "boot-no-driver" and words in one.summary


def test_without_a_need_of_a_driver_only_the_kernel_counts(plan: Plan) -> None:
    assert found(plan, k.facts(module=None, grub=STAGED), next_boot.BOOT) == []
    whole = k.facts(module=None, kernels=(k.installed(OLD, None, initrd=None),))
    (one,) = found(plan, whole, next_boot.BOOT)
    assert one.code == "boot-no-kernel" and "initrd" in one.summary


def test_a_pin_whose_package_was_removed_is_seen(plan: Plan) -> None:
    removed = k.installed(OLD, k.module(OLD), vmlinuz=None, initrd=None)
    grub = k.grub(next=GONE, default=GONE)
    facts = k.facts(grub=grub, kernels=(removed, k.installed(NEW, None)))
    rows = found(plan, facts, next_boot.BOOT)
    assert [v.code for v in rows] == ["boot-no-driver", "pin-gone"]
    # it runs still, but a pin of it would be refused
    assert all(f"--reinstall linux-image-{OLD}" in row.remedy for row in rows)


@pytest.mark.parametrize(
    "facts",
    [
        Unreadable(unreadable="timed out"),
        k.facts(grub=Unreadable(unreadable="grub.cfg is malformed: line 3")),
        k.facts(kernels=Unreadable(unreadable="no modinfo")),
    ],
)
def test_unknown_blocks(plan: Plan, facts: KernelFacts | Unreadable) -> None:
    codes = {(v.code, v.severity, v.unknown) for v in found(plan, facts, next_boot.BOOT)}
    assert ("kernel-unreadable", "block", True) in codes


@pytest.mark.parametrize("loader", ["systemd-boot", "none"])
def test_another_boot_loader_is_unknown_and_cannot_be_pinned(plan: Plan, loader: str) -> None:
    gone = Unreadable(unreadable="no GRUB")
    facts = k.facts(loader=loader, grub=gone, boot=gone)
    assert [v.code for v in found(plan, facts, next_boot.BOOT)] == ["boot-unknown"]
    (one,) = found(plan, facts, pinnable("current", frozenset({HEAD})))
    assert one.code == "pin-entry" and loader in one.summary


def test_a_container_has_no_boot_of_its_own(plan: Plan) -> None:
    gone = Unreadable(unreadable="no GRUB")
    assert found(plan, k.facts(loader="container", grub=gone, boot=gone), next_boot.BOOT) == []


def test_the_doctor_warns_and_does_not_block(plan: Plan) -> None:
    seen = f.serving(plan)
    both = {name: k.with_kernel(s, k.facts(grub=STAGED)) for name, s in seen.items()}
    rows = {(v.code, v.node): v.severity for v in examine(plan, both)}
    assert rows["boot-no-driver", HEAD] == rows["boot-no-driver", WORKER] == "warn"


PINS: dict[str, tuple[str, KernelFacts, str, str]] = {
    "not installed": ("6.1.0-1-gone", k.facts(), "pin-entry", "is not installed"),
    "no driver": (NEW, k.facts(), "pin-no-driver", f"no nvidia module for {NEW}"),
    "no initrd": (OLD, k.facts(kernels=(k.installed(OLD, k.module(OLD), initrd=None),)),
                  "pin-entry", "initrd"),
    "twice": (OLD, k.facts(grub=k.grub(entries=(k.entry(OLD), k.entry(OLD)))), "pin-entry",
              "2 entries"),
    "no entry": (OLD, k.facts(grub=k.grub(entries=(k.entry(NEW),))), "pin-entry", "0 entries"),
    "no grubenv": (OLD, k.facts(grub=k.grub(grubenv="missing")), "grubenv-bad", "missing"),
    "bad grubenv": (OLD, k.facts(grub=k.grub(grubenv="corrupt: 3 bytes")), "grubenv-bad", "3 b"),
    "full": (OLD, k.facts(boot=k.place(free=1 << 20)), "boot-room", "1 MiB free"),
    "read-only": (OLD, k.facts(boot=k.place(read_only=True)), "boot-room", "read-only"),
}  # fmt: skip


@pytest.mark.parametrize("name", PINS)
def test_a_pin_is_refused(plan: Plan, name: str) -> None:
    release, facts, code, words = PINS[name]
    codes = {v.code: v for v in found(plan, facts, pinnable(release, frozenset({HEAD})))}
    assert code in codes and words in codes[code].summary
    assert codes[code].severity == "block"


def test_a_kernel_that_is_not_there_lists_those_that_are(plan: Plan) -> None:
    (one,) = found(plan, k.facts(), pinnable("6.1.0-1-gone", frozenset({HEAD})))
    assert OLD in one.evidence and NEW in one.evidence


def test_a_node_that_is_left_out_is_not_asked(plan: Plan) -> None:
    assert found(plan, k.facts(grub=STAGED), pinnable("current", frozenset({WORKER}))) == []


def test_a_candidate_needs_a_pinned_kernel_and_a_plain_boot(plan: Plan) -> None:
    ready = (k.installed(OLD, k.module(OLD)), k.installed(NEW, k.module(NEW)))
    gates = bootable_once(NEW, frozenset({HEAD}))
    assert found(plan, k.facts(kernels=ready), gates) == []
    for changes, code in (
        ({"grub": STAGED}, "not-pinned"),
        ({"running": NEW}, "not-pinned"),
        ({"boot": k.place(kind="lvm", sticky=True)}, "boot-sticky"),
        ({"kernels": (ready[0], k.installed(NEW, None))}, "pin-no-driver"),
    ):
        codes = [v.code for v in found(plan, k.facts(**{"kernels": ready, **changes}), gates)]
        assert code in codes, (changes, codes)


@pytest.mark.parametrize("waived", [False, True])
def test_one_boot_where_grub_cannot_write_is_asked_for_only_when_waived(
    plan: Plan, waived: bool
) -> None:
    want = Want(plan, NEW, True, frozenset({HEAD}), "nvidia", 1800)
    *_, unit, once = candidate_steps(want, "change", k.facts(), {}, waived)
    assert unit["op"] == "unit" and unit["enabled"] is True
    assert once == {"op": "grub", "saved": OLD, "next": NEW, "sticky_ok": waived}


def files(release: str) -> dict[str, FileState]:
    """The pin's files as they are after it."""
    import hashlib

    return {
        d.path: FileState(
            path=d.path, kind="file", sha256=hashlib.sha256(d.content.encode()).hexdigest(),
            size=len(d.content), mode=d.mode, uid=0, gid=0, content=d.content,
        )
        for d in pin_documents(release, k.apt().pinning[release])
    }  # fmt: skip


def test_a_pin_that_is_there_has_no_steps() -> None:
    assert pin_steps(OLD, k.grub(), k.apt(), files(OLD)) == []
    assert pin_words(OLD, k.grub(), k.apt()) == (f"default kernel: {OLD} (saved)",)


def test_each_part_of_a_pin_that_is_missing_comes_back_alone() -> None:
    held = k.apt(holds=())
    assert [s["op"] for s in pin_steps(OLD, k.grub(), held, files(OLD))] == ["hold"]
    once = k.grub(next_entry=k.path(NEW))
    assert [s["op"] for s in pin_steps(OLD, once, k.apt(), files(OLD))] == ["grub"]
    assert [s["op"] for s in pin_steps(OLD, k.grub(), k.apt(), {})] == ["file", "file", "grub"]


def test_the_seeds_title_is_recognised_and_left_in_place() -> None:
    title = GrubDefault(value="Advanced options for Ubuntu>Ubuntu, with Linux " + OLD,
                        file="/etc/default/grub", mode="title")  # fmt: skip
    words = pin_words(OLD, k.grub(configured=title, saves=False, default=GONE), k.apt(holds=()))
    assert f"{NEW} (" in words[0] and f"-> {OLD} (saved)" in words[0]
    assert "is a menu's title" in words[1] and "the line stays" in words[1]
    assert words[2] == f"new holds: linux-generic, linux-image-{OLD}"


def test_apt_leaves_the_pinned_kernel_alone() -> None:
    (_, conf) = pin_documents(OLD, k.apt().pinning[OLD])
    assert conf.content.count('"^linux-image-6\\.17\\.0-22-generic$";') == 2
    assert 'Remove-Unused-Kernel-Packages "false";' in conf.content
