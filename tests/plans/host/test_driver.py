"""driver: what is fetched, sent and shown, what refuses it, and how a failing step ends."""

from __future__ import annotations

from typing import Any

import pytest

from schema.hardware import DriverFacts
from schema.host import KernelFacts
from tests.plans.support.doubles import Reply, completion
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Table,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
)
from tests.unit.builders import host_parts
from tests.unit.builders.host_parts import NEW_KERNEL, OLD_KERNEL

TO = "version=580.142"
FACTS = host_parts.driver_facts()
HELD = host_parts.driver_facts(**{"apt.holds": ("linux-generic", *host_parts.DRIVER_PACKAGES)})
# boards that show no display, and that nobody has attested
HEADLESS = {
    f"{name}:says hardware": host_parts.hardware_facts().model_dump(mode="json")
    for name in (HEAD, WORKER)
}
ANSWERS = {
    "driver fetch": {"kept": dict.fromkeys(host_parts.DRIVER_PACKAGES, "cache"), "new": 4},
    "driver cdi": {"text": "cdiVersion: 0.5.0\ndevices: []\n"},
    "driver prove": {"lines": ["module and library are 580.142", "nvidia-smi agrees"]},
}


def reply() -> Reply:
    return Reply({**completion(), "usage": {"completion_tokens": 16}}, late_s=0.2)


def run(
    *pairs: str, on: DriverFacts = FACTS, worker: DriverFacts | None = None,
    after: DriverFacts | None = None, kernel: KernelFacts | None = None,
    how: tuple[str, ...] = ("-y",), faults: dict[str, Any] | None = None, **answers: Any,
) -> Scenario:  # fmt: skip
    """The deploy on two nodes whose driver is `on`, and `after` once it is changed."""
    said = {**ANSWERS, **answers}
    own: dict[str, Any] = {}
    for name, facts in ((HEAD, on), (WORKER, worker or on)):
        rows = [each.model_dump(mode="json") for each in (facts, after or host_parts.done())]
        own |= {f"{name}:answers": said, f"{name}:says driver": rows}
    words = ("deploys/driver.py", *how, *data(*pairs))
    host = {"driver_module": "nvidia"}
    boots = kernel or host_parts.kernel_facts()
    return Scenario(words, data=host, faults={**own, **(faults or {})}, answers=reply,
                    kernels={HEAD: boots, WORKER: boots})  # fmt: skip


def other(**changes: Any) -> Scenario:
    """The same with one thing that is not as it should be."""
    return run(TO, on=host_parts.driver_facts(**changes))


EACH = ["lab{} apply packages", "lab{} reboot"]
TABLE: Table = {
    "both": (
        run(TO),
        done("3 old ones are kept (cache)", "nvidia-smi agrees", "driver 580.142; ", "COMMITTED"),
    ),
    "dry": (
        run(TO, how=("--dry", "--diff")),
        quiet(
            "driver 580.126.09 -> 580.142",
            "nvidia-dkms-580-open: 580.126.09-0ubuntu0.24.04.1 -> 580.142-0ubuntu0.24.04.1 (old "
            "one: "
            "repository)",
            "nvidia-firmware-580-580.142: new -> 580.142-0ubuntu0.24.04.1",
            "310 MiB to fetch before anything stops",
            f"DKMS builds nvidia for {OLD_KERNEL}",
            "stops: the engine; then boots the default kernel once",
            "estimate: 390 s here",
            "exchange 4 packages; nvidia 580.142 must be",
            "reboot, then wait up to",
        ),
    ),
    "latest": (run("latest=true", how=("--dry",)), quiet("-> 580.142")),
    "family": (run("family=580", "latest=true", how=("--dry",)), quiet("-> 580.142")),
    "again": (
        run(TO, on=host_parts.done()),
        quiet("the driver 580.142 is there and loaded; as wanted"),
    ),
    # user space was upgraded under the module that runs (D12): the boot alone is to be done
    "loaded": (
        run(TO, on=host_parts.driver_facts(versions=(host_parts.NEW_DRIVER,), **{"apt.rows": ()})),
        done("COMMITTED"),
    ),
    "held": (run(TO, on=HELD), done("COMMITTED")),
    "without a lease": (run(TO, "lease=false"), done("COMMITTED")),
    "hands": (run(TO, faults=HEADLESS), refused("hands-needed")),
    "not built": (
        run(
            TO,
            faults={
                f"{WORKER}:apply packages": {
                    "error": "there is no nvidia module for 6.17.0-22-generic: error: implicit "
                    "declaration; "
                    "nothing was changed",
                    "code": "no_module",
                }
            },
        ),
        failed("implicit declaration", "ROLLED_BACK", "serves again"),
    ),
    "not fetched": (
        run(
            TO,
            faults={
                f"{HEAD}:driver fetch": {
                    "error": "the packages cannot be downloaded: E: Failed to fetch; nothing "
                    "was changed",
                    "code": "not_fetched",
                }
            },
        ),
        failed("Failed to fetch", never=("ROLLED_BACK",)),
    ),
    "not proven": (
        run(
            TO,
            faults={
                f"{WORKER}:driver prove": {
                    "error": "nvidia-smi: Failed to initialize NVML: Driver/library version "
                    "mismatch",
                    "code": "not_proven",
                }
            },
        ),
        failed("version mismatch", "ROLLED_BACK"),
    ),
    "another one came": (
        run(TO, after=FACTS),
        failed(
            "the module is 580.126.09, programs load 580.126.09, wanted is 580.142", "ROLLED_BACK"
        ),
    ),
    "old gone": (
        other(**{"apt.rows": (host_parts.row("libnvidia-gl-580", kept="none"),)}),
        refused("driver-old-gone", "not to be had any more", "dpkg-repack"),
    ),
    "others": (
        other(users=(host_parts.user(77, "Xorg", "gdm.service"),)),
        refused("driver-users", says=("Xorg (pid 77, gdm.service)",)),
    ),
    "two lists": (
        run(TO, worker=host_parts.driver_facts(**{"apt.wanted": "580.159.03"})),
        refused("driver-version", "would get the driver 580.159.03"),
    ),
    "dpkg": (
        other(dpkg="dpkg was interrupted"),
        refused("driver-dpkg", "sudo dpkg --configure -a"),
    ),
    "next boot": (
        run(
            TO,
            kernel=host_parts.kernel_facts(
                grub=host_parts.grub(next=host_parts.target(NEW_KERNEL))
            ),
        ),
        refused("boot-no-driver", f"would boot {NEW_KERNEL} next"),
    ),
    "full /boot": (
        run(TO, kernel=host_parts.kernel_facts(boot=host_parts.place(free=1 << 20))),
        refused("boot-room", "1 MiB free"),
    ),
    "candidate": (
        run(
            TO,
            f"candidate={NEW_KERNEL}",
            kernel=host_parts.kernel_facts(grub=host_parts.grub(ours=False)),
        ),
        refused("not-pinned"),
    ),
    "both of them": (
        run(TO, f"candidate={NEW_KERNEL}", how=("--dry",)),
        quiet(
            f"DKMS builds nvidia for {OLD_KERNEL}, {NEW_KERNEL}",
            f"then boots {NEW_KERNEL} once",
            f"GRUB boots {NEW_KERNEL} once",
            "estimate: 540 s here",
        ),
    ),
    "known bad": (run(TO, "candidate=7.0.0-1019-nvidia", how=("--dry",)), refused("pin-entry")),
    "neither": (run(), refused("give one of them")),
}
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_one_node_after_the_other_under_a_lease(ran: Runs) -> None:
    steps = ran["both"].steps
    assert {*steps[:2]} == {"lab1 driver fetch", "lab2 driver fetch"}
    assert {*steps[2:4]} == {"lab1 lease", "lab2 lease"}
    moved = [s for s in steps if "packages" in s or "reboot" in s]
    assert moved == [line.format(n) for n in (2, 1) for line in EACH]
    assert steps.index("lab2 apply stop") < steps.index("lab2 apply packages")
    assert {"lab1 driver prove", "lab2 driver prove"} < {*steps}
    assert steps.index("lab1 apply start") > steps.index("lab1 driver prove")
    assert steps.index("lab2 apply file") > steps.index("lab1 driver cdi") - 3
    assert "lab1 lease" not in ran["without a lease"].steps


def test_a_held_family_is_held_again_and_a_boot_alone_exchanges_nothing(ran: Runs) -> None:
    held = [s.request for s in ran["held"].commands if "packages" in s.what]
    for request in held:
        off, packages, on = request["steps"]
        assert (off["held"], on["held"]) == (False, True)
        assert off["packages"] == on["packages"] == sorted(host_parts.DRIVER_PACKAGES)
        assert packages["kernels"] == [OLD_KERNEL] and len(packages["rows"]) == 4
    assert len(held) == 2
    assert not any("packages" in step for step in ran["loaded"].steps)


@pytest.mark.parametrize("name", ["not built", "not proven", "another one came"])
def test_no_node_keeps_another_driver_than_the_others(ran: Runs, name: str) -> None:
    undone = {step.split()[0] for step in ran[name].steps if step.endswith(" undo")}
    changed = {step.split()[0] for step in ran[name].steps if " apply " in step}
    assert undone == changed == {"lab1", "lab2"}


def test_the_first_node_that_fails_keeps_the_other_from_being_touched(ran: Runs) -> None:
    assert not {"lab1 apply packages", "lab1 reboot"} & {*ran["not built"].steps}
