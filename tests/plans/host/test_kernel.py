"""kernel: what a pin sends, shows before and refuses, and that a second one is empty."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from deploys.plans import kernel
from deploys.plans.rig import files_in
from operations.run import Run, StepFailed
from schema.host import GrubDefault, KernelFacts
from schema.plan import Plan
from schema.render_host import pin_documents
from schema.snapshot import Unreadable
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Ends,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    Table,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
    serving,
)
from tests.unit.builders import host_parts, rigs
from tests.unit.builders.engine_parts import written_file
from tests.unit.builders.host_parts import NEW_KERNEL, OLD_KERNEL

PIN, TRY = "kernel=current", f"candidate={NEW_KERNEL}"
_MENU = host_parts.target(NEW_KERNEL, "menu", "grub.cfg's default is a title")
STAGED = host_parts.kernel_facts(
    apt=host_parts.apt(holds=()),
    grub=host_parts.grub(
        configured=GrubDefault(value="Advanced>Linux", file="/etc/default/grub", mode="title"),
        saved_entry=None, saves=False, ours=False, next=_MENU, default=_MENU,
    ),
)  # fmt: skip


def pinned(plan: Plan) -> Snapshots:
    """The rig as a pin leaves it: its files are there."""
    seen = serving(plan)
    written = tuple(
        written_file(each)
        for each in pin_documents(OLD_KERNEL, host_parts.apt().pinning[OLD_KERNEL])
    )
    for name, snapshot in seen.items():
        there = tuple(files_in(snapshot).values())
        seen[name] = rigs.put(snapshot, "files", (*there, *written))
    return seen


DKMS = host_parts.kernel_facts(
    apt=host_parts.apt(
        pinning={
            OLD_KERNEL: (
                "linux-generic",
                f"linux-image-{OLD_KERNEL}",
                "libnvidia-compute-580",
                "nvidia-dkms-580",
            ),
        }
    )
)
SYSTEMD = host_parts.kernel_facts(loader="systemd-boot", grub=Unreadable(unreadable="no GRUB"),
                  boot=Unreadable(unreadable="no GRUB"))  # fmt: skip
BOTH = (
    host_parts.installed(OLD_KERNEL, host_parts.module(OLD_KERNEL)),
    host_parts.installed(NEW_KERNEL, host_parts.module(NEW_KERNEL)),
)
STICKY = host_parts.kernel_facts(boot=host_parts.place(kind="lvm", sticky=True), kernels=BOTH)
MALFORMED = "grub.cfg is malformed: line 3: a quote that never ends; sudo update-grub makes it anew"


def run(
    *pairs: str, on: KernelFacts = STAGED, seen: Seen = serving, how: tuple[str, ...] = ("-y",),
    deploy: str = "kernel", **more: Any,
) -> Scenario:  # fmt: skip
    """A deploy on two nodes that would boot as `on` says."""
    words = (f"deploys/{deploy}.py", *how, *data(*pairs))
    return Scenario(words, seen, kernels={HEAD: on, WORKER: on}, **more)


TABLE: Table = {
    "pin": (run(PIN), done(f"{HEAD} boots {OLD_KERNEL}", "2 packages held")),
    "dry": (
        run(PIN, how=("--dry", "--diff")),
        quiet(
            "+GRUB_DEFAULT=saved",
            "is a menu's title (Advanced>Linux)",
            f"default kernel: {NEW_KERNEL} (grub.cfg's default is a title) -> {OLD_KERNEL} (saved)",
            f"new holds: linux-generic, linux-image-{OLD_KERNEL}",
        ),
    ),
    # the driver's packages are held with the kernel's, and only those that nobody holds yet are new
    "driver": (
        run(PIN, how=("--dry", "--diff"), on=DKMS),
        quiet("new holds: libnvidia-compute-580, nvidia-dkms-580", '+  "^nvidia-dkms-580$";'),
    ),
    "again": (
        run(PIN, on=host_parts.kernel_facts(), seen=pinned),
        quiet(f"default kernel: {OLD_KERNEL} (saved); as wanted"),
    ),
    "one node": (run(PIN, f"only={WORKER}"), done()),
    "update-grub fails": (
        run(
            PIN,
            faults={
                f"{WORKER}:apply file+hold+grub": {
                    "error": "update-grub failed: syntax error; nothing was changed",
                    "code": "update_grub_failed",
                }
            },
        ),
        failed("update-grub failed: syntax error", "ROLLED_BACK"),
    ),
    "absent": (
        run("kernel=6.1.0-1-gone", on=host_parts.kernel_facts()),
        refused("pin-entry", "kernel 6.1.0-1-gone is not installed"),
    ),
    "no driver": (
        run(f"kernel={NEW_KERNEL}", on=host_parts.kernel_facts()),
        refused("pin-no-driver", f"no nvidia module for {NEW_KERNEL}"),
    ),
    "systemd-boot": (
        run(PIN, on=SYSTEMD),
        refused("pin-entry", "does not boot by GRUB (systemd-boot)"),
    ),
    "malformed": (
        run(PIN, on=host_parts.kernel_facts(grub=Unreadable(unreadable=MALFORMED))),
        failed("kernel-unreadable", "malformed: line 3", "sudo update-grub", steps=[]),
    ),
    "corrupt": (
        run(
            PIN,
            on=host_parts.kernel_facts(
                grub=host_parts.grub(grubenv="corrupt: it has 3 bytes, a block has 1024")
            ),
        ),
        refused("grubenv-bad", "corrupt: it has 3 bytes", "grub-editenv /boot/grub/grubenv create"),
    ),
    "tried": (
        run(TRY, on=host_parts.kernel_facts(kernels=BOTH)),
        failed(f"{NEW_KERNEL} did not stay up: {OLD_KERNEL} runs again", "run the pinned kernel"),
    ),
    "not pinned": (run(TRY), refused("not-pinned", "no pinned kernel to fall back to")),
    "sticky": (
        run(TRY, on=STICKY),
        failed("boot-sticky", "lies on lvm", "pin it for good", steps=[]),
    ),
    "neither": (run(on=host_parts.kernel_facts()), refused("give one of them")),
    "both": (run(PIN, TRY, on=host_parts.kernel_facts()), refused("give one of them")),
    "hostile": (
        run("kernel=$(touch x)", on=host_parts.kernel_facts()),
        refused("kernel", "is no kernel"),
    ),
    "reboot": (
        run(deploy="reboot"),
        refused(
            "boot-no-driver",
            f"would boot {NEW_KERNEL} next, without its driver",
            "kernel=current",
            says=("grub.cfg's default is a title",),
        ),
    ),
    "doctor": (run(deploy="doctor"), Ends(None, (), ("warn boot-no-driver",))),
}
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_a_pin_is_one_change_on_both_nodes_proven_and_blessed(ran: Runs) -> None:
    for node in ("lab1", "lab2"):
        mine = [step for step in ran["pin"].steps if step.startswith(node)]
        assert mine == [f"{node} apply file+hold+grub", f"{node} close COMMITTED"]
    assert {step.split()[0] for step in ran["one node"].steps} == {"lab2"}


def test_a_failing_update_grub_takes_both_nodes_back(ran: Runs) -> None:
    run = ran["update-grub fails"]
    # lab1 may have been done, or not begun, when lab2 failed
    done = {step.split()[0] for step in run.steps if " apply " in step}
    assert {step.split()[0] for step in run.steps if step.endswith(" undo")} == done
    assert "lab2" in done


def test_a_node_that_is_not_as_it_was_keeps_no_other_on_the_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its undo ended INCONSISTENT: that is told at the end, once both run the pinned kernel."""
    running = {"lab1": NEW_KERNEL, "lab2": NEW_KERNEL}
    asked: list[str] = []

    def call(_: object, host: str, *__: object) -> None:
        asked.append(host)
        if host == "lab1":
            raise StepFailed("lab1: undo: /x is not as it was", "undo_incomplete")

    facts = lambda name, _: SimpleNamespace(running=running[name], boot_id="b")  # noqa: E731
    monkeypatch.setattr(kernel, "call", call)
    monkeypatch.setattr(kernel, "observe_kernels", lambda *_, **__: running)
    monkeypatch.setattr(kernel, "facts_of", facts)
    monkeypatch.setattr(
        kernel, "reboot_now", lambda _, host, *__: running.update({host: OLD_KERNEL})
    )
    monkeypatch.setattr(kernel, "_start_again", lambda *_: [])
    run = SimpleNamespace(
        id="c",
        touched={"lab1", "lab2"},
        state=None,
        plan=None,
        host=str,
        owner=SimpleNamespace(token="t"),
        context={"kernels": {"lab1": OLD_KERNEL, "lab2": OLD_KERNEL}},
    )
    with pytest.raises(StepFailed, match="/x is not as it was"):
        kernel.revert(cast(Run, run))
    assert asked == ["lab1", "lab2"] and running == {"lab1": OLD_KERNEL, "lab2": OLD_KERNEL}
