"""kernel: what a pin sends, shows before and refuses, and that a second one is empty."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from schema.observed.kernel import GrubDefault, KernelFacts
from schema.observed.snapshot import Unreadable
from schema.render.kernel_files import pin_documents
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, Snapshots, serving
from tests.unit.builders import kernel_parts as k
from tests.unit.builders import snapshots
from tests.unit.builders.kernel_parts import NEW, OLD

PIN = ("deploys/kernel.py", "-y", "--data", "kernel=current")
DRY = ("deploys/kernel.py", "--dry", "--diff", "--data", "kernel=current")
TRY = ("deploys/kernel.py", "-y", "--data", f"candidate={NEW}")
_MENU = k.target(NEW, "menu", "grub.cfg's default is a title")
STAGED = k.facts(
    apt=k.apt(holds=()),
    grub=k.grub(
        configured=GrubDefault(value="Advanced>Linux", file="/etc/default/grub", mode="title"),
        saved_entry=None, saves=False, ours=False, next=_MENU, default=_MENU,
    ),
)  # fmt: skip


def _both(facts: KernelFacts) -> dict[str, KernelFacts]:
    return {HEAD: facts, WORKER: facts}


def pinned(plan: Any) -> Snapshots:
    """The rig as a pin leaves it: its files are there."""
    seen = serving(plan)
    for name, snapshot in seen.items():
        files = list(snapshot.files)
        for document in pin_documents(OLD, k.apt().pinning[OLD]):
            sha = hashlib.sha256(document.content.encode()).hexdigest()
            files.append(files[0].model_copy(update={
                "path": document.path, "sha256": sha, "mode": document.mode, "uid": 0, "gid": 0,
                "kind": "file", "content": document.content}))  # fmt: skip
        seen[name] = snapshots.put(snapshot, "files", tuple(files))
    return seen


SYSTEMD = k.facts(loader="systemd-boot", grub=Unreadable(unreadable="no GRUB"),
                  boot=Unreadable(unreadable="no GRUB"))  # fmt: skip
SCENARIOS = {
    "pin": Scenario(PIN, kernels=_both(STAGED)),
    "dry": Scenario(DRY, kernels=_both(STAGED)),
    "again": Scenario(PIN, pinned, kernels=_both(k.facts())),
    "one node": Scenario((*PIN, "--data", "only=" + WORKER), kernels=_both(STAGED)),
    "update-grub fails": Scenario(
        PIN, kernels=_both(STAGED),
        faults={f"{WORKER}:apply file+hold+grub": {
            "error": "update-grub failed: syntax error; nothing was changed",
            "code": "update_grub_failed"}},
    ),
    "absent": Scenario((*PIN[:2], "--data", "kernel=6.1.0-1-gone"), kernels=_both(k.facts())),
    "no driver": Scenario((*PIN[:2], "--data", f"kernel={NEW}"), kernels=_both(k.facts())),
    "systemd-boot": Scenario(PIN, kernels=_both(SYSTEMD)),
    "malformed": Scenario(PIN, kernels=_both(k.facts(grub=Unreadable(
        unreadable="grub.cfg is malformed: line 3: a quote that never ends; sudo update-grub makes "
                   "it anew")))),
    "corrupt": Scenario(PIN, kernels=_both(k.facts(
        grub=k.grub(grubenv="corrupt: it has 3 bytes, a block has 1024")))),
    "waived": Scenario((*TRY, "--data", "waive=boot-sticky", "--data", "reason=a test"),
                       kernels=_both(k.facts(
        boot=k.place(kind="lvm", sticky=True),
        kernels=(k.installed(OLD, k.module(OLD)), k.installed(NEW, k.module(NEW)))))),
    "not pinned": Scenario(TRY, kernels=_both(STAGED)),
    "sticky": Scenario(TRY, kernels=_both(k.facts(
        boot=k.place(kind="lvm", sticky=True),
        kernels=(k.installed(OLD, k.module(OLD)), k.installed(NEW, k.module(NEW)))))),
    "neither": Scenario(PIN[:2], kernels=_both(k.facts())),
    "both": Scenario((*PIN, "--data", f"candidate={NEW}"), kernels=_both(k.facts())),
    "hostile": Scenario((*PIN[:2], "--data", "kernel=$(touch x)"), kernels=_both(k.facts())),
    "reboot": Scenario(("deploys/reboot.py", "-y"), kernels=_both(STAGED)),
    "doctor": Scenario(("deploys/doctor.py", "-y"), kernels=_both(STAGED)),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_a_pin_is_one_change_on_both_nodes_proven_and_blessed(ran: Runs) -> None:
    run = ran["pin"]
    assert run.status == 0, run.output
    for node in ("lab1", "lab2"):
        mine = [step for step in run.steps if step.startswith(node)]
        assert mine == [f"{node} apply file+hold+grub", f"{node} close COMMITTED"]
    assert f"{HEAD} boots {OLD}" in run.output and "2 packages held" in run.output


def test_dry_shows_the_diff_the_default_and_the_holds(ran: Runs) -> None:
    run = ran["dry"]
    assert run.status == 0 and run.changing == ()
    assert "+GRUB_DEFAULT=saved" in run.output
    assert f"default kernel: {NEW} (grub.cfg's default is a title) -> {OLD} (saved)" in run.output
    assert "is a menu's title (Advanced>Linux)" in run.output
    assert f"new holds: linux-generic, linux-image-{OLD}" in run.output


def test_a_second_pin_changes_nothing(ran: Runs) -> None:
    run = ran["again"]
    assert run.status == 0, run.output
    assert run.changing == ()
    assert f"default kernel: {OLD} (saved); as wanted" in run.output


def test_only_the_named_node_is_pinned(ran: Runs) -> None:
    assert {step.split()[0] for step in ran["one node"].steps} == {"lab2"}


def test_a_failing_update_grub_takes_both_nodes_back(ran: Runs) -> None:
    run = ran["update-grub fails"]
    assert run.status == 1
    assert "update-grub failed: syntax error" in run.output and "ROLLED_BACK" in run.output
    # lab1 may have been done, or not begun, when lab2 failed
    done = {step.split()[0] for step in run.steps if " apply " in step}
    assert {step.split()[0] for step in run.steps if step.endswith(" undo")} == done
    assert "lab2" in done and "close COMMITTED" not in " ".join(run.steps)


REFUSED = {
    "absent": ("pin-entry", "kernel 6.1.0-1-gone is not installed"),
    "no driver": ("pin-no-driver", f"no nvidia module for {NEW}"),
    "systemd-boot": ("pin-entry", "does not boot by GRUB (systemd-boot)"),
    "malformed": ("kernel-unreadable", "malformed: line 3", "sudo update-grub"),
    "corrupt": ("grubenv-bad", "corrupt: it has 3 bytes", "grub-editenv /boot/grub/grubenv create"),
    "not pinned": ("not-pinned", "no pinned kernel to fall back to"),
    "sticky": ("boot-sticky", "lies on lvm"),
    "neither": ("give one of them",),
    "both": ("give one of them",),
    "hostile": ("kernel", "is no kernel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(ran: Runs, name: str) -> None:
    if name in ("sticky", "malformed"):  # among other findings, or in the evidence of one
        assert ran[name].status == 1 and ran[name].changing == ()
        assert all(word in ran[name].output for word in REFUSED[name])
        return
    ran[name].refused(*REFUSED[name])


def test_waived_a_sticky_boot_is_begun(ran: Runs) -> None:
    # no booted host is behind this rig, so it ends in the reboot; the VM tier goes on from there
    run = ran["waived"]
    assert "block boot-sticky" not in run.output
    assert any("grub" in step for step in run.steps), run.output


def test_a_reboot_into_a_kernel_without_a_driver_is_refused(ran: Runs) -> None:
    run = ran["reboot"]
    run.refused("boot-no-driver", f"would boot {NEW} next, without its driver", "kernel=current")
    assert "grub.cfg's default is a title" in run.output


def test_the_doctor_warns_before_the_reboot(ran: Runs) -> None:
    assert "warn boot-no-driver" in ran["doctor"].output
