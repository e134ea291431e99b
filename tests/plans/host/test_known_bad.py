"""A kernel that is known to fail stops serve, reboot and a pin, before anything has changed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml

from schema.plan import Plan
from tests.plans.support.scenario import (
    HEAD,
    ROOT,
    WORKER,
    Scenario,
    Seen,
    Snapshots,
    Table,
    data,
    each_row,
    quiet,
    refused,
    serving,
)
from tests.unit.builders import host_parts
from tests.unit.builders.rigs import healthy, put

MADE = tempfile.TemporaryDirectory(prefix="rigbook-kernels-")
BAD, GOOD = "7.0.0-1019-nvidia", "6.17.0-1032-nvidia"
WHY = "is known to fail on this rig: no rank can register memory for RDMA"
MEND = "GRUB_CMDLINE_LINUX_DEFAULT kho=off"
MENU = host_parts.grub(
    entries=tuple(host_parts.entry(release).model_copy(update={"options": "ro quiet"})
                  for release in (BAD, GOOD)),
    next=host_parts.target(BAD), default=host_parts.target(GOOD), saved_entry=host_parts.path(GOOD),
)  # fmt: skip
STAGED = host_parts.kernel_facts(
    running=GOOD,
    grub=MENU,
    kernels=tuple(
        host_parts.installed(release, host_parts.module(release)) for release in (GOOD, BAD)
    ),
)


def on(kernel: str, state: Seen) -> Seen:
    """The pair on this kernel, without a word on its command line."""

    def seen(plan: Plan) -> Snapshots:
        found = state(plan)
        for node in found:
            for path, value in (("identity.kernel", kernel), ("identity.cmdline", "ro quiet")):
                found[node] = put(found[node], path, value)
        return found

    return seen


def run(deploy: str, *words: str, kernel: str = GOOD, state: Seen = serving) -> Scenario:
    """A runbook on two Sparks whose GRUB boots the new kernel next."""
    recipe = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    recipe["expect"]["needs_nvidia"] = True
    Path(MADE.name, "nvidia.yaml").write_text(yaml.safe_dump(recipe))
    rig = {"recipe": "nvidia", "recipes_dir": [MADE.name]}
    return Scenario((f"deploys/{deploy}.py", *words), on(kernel, state), data=rig,
                    kernels={HEAD: STAGED, WORKER: STAGED})  # fmt: skip


TABLE: Table = {
    "serve": (run("serve", "-y", kernel=BAD, state=healthy), refused(
        MEND, says=(f"@fake/lab1 runs kernel {BAD}, which {WHY}", "DSpark#259"))),
    # it has shown that it works
    "serving": (run("serve", "--dry", kernel=BAD), quiet("kernel-known-bad")),
    "reboot": (run("reboot", "-y"), refused(
        MEND, says=(f"would boot next kernel {BAD}, which {WHY}",))),
    "pin": (run("kernel", "-y", *data(f"kernel={BAD}")), refused(
        MEND, says=(f"would pin kernel {BAD}, which {WHY}",))),
    "candidate": (run("kernel", "-y", *data(f"candidate={BAD}")), refused(
        "kho=off", says=(WHY,))),
    "pin of the good one": (run("kernel", "--dry", *data("kernel=current")), quiet(
        f"default kernel: {GOOD}", never=("kernel-known-bad",))),
    "doctor": (run("doctor", "-y", kernel=BAD), refused(
        "block serving", says=(f"@fake/lab1 runs kernel {BAD}", f"would boot next kernel {BAD}"))),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)
