"""Lines that a real kernel has in its ring reach the finding, and a healthy VM has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.system.vm.conftest import Rig

OURS = {"gpu-lost", "gpu-xid", "kernel-crash", "machine-check", "task-hung", "pcie-errors",
        "pcie-link", "nic-errors", "disk-errors", "disk-read-only", "disk-wear",
        "memory-kill", "driver-library", "fabric-volatile", "health-unreadable"}  # fmt: skip
# What is written into /dev/kmsg has the form of the kernel's own records. journald takes the name
# "kernel" from the text: the kernel does not let anybody write as itself.
LINES = (
    "<4>NVRM: Xid (PCI:0000:29:00): 119, pid=7, name=vllm, Timeout after 6s of waiting",
    "<4>watchdog: BUG: soft lockup - CPU#1 stuck for 27s! [python3:2254956]",
    "<3>kernel: Out of memory: Killed process 9999 (python3) total-vm:100000kB",
)


def found(rig: Rig) -> dict[str, Any]:
    """The doctor's findings about the machine, by code."""
    _, output = rig.deploy("deploys/doctor.py", "-y", "--data", "json=true")
    rows = json.loads(output[output.index("[\n") : output.rindex("]") + 1])
    return {row["code"]: row for row in rows if row["code"] in OURS}


def test_lines_of_the_kernel_reach_the_doctor(boot: Callable[..., Rig]) -> None:
    rig = boot()
    rig.with_engine()
    assert found(rig) == {}
    took = rig.node("health")["took_s"]
    rig.note(f"health took {took} s")
    for line in LINES:
        rig.machine.must(f"echo '{line}' > /dev/kmsg")
    rows = found(rig)
    assert set(rows) == {"gpu-xid", "kernel-crash", "memory-kill"}
    assert "GSP RPC Timeout" in rows["gpu-xid"]["summary"]
    assert "--gpu-reset" in rows["gpu-xid"]["remedy"]
    assert "stuck for 27s" in rows["kernel-crash"]["evidence"]


def test_a_filesystem_that_errors_turn_read_only(boot: Callable[..., Rig]) -> None:
    """A real one: ext4 with an error, mounted with errors=remount-ro. The mountinfo of Debian's 6.1
    says rw all the same, as 6.12's does: the kernel's line tells of it.
    """
    rig = boot()
    rig.machine.must(
        "truncate -s 64M /srv/d.img; mkfs.ext4 -q /srv/d.img; mkdir -p /srv/d; "
        "mount -o loop,errors=remount-ro /srv/d.img /srv/d; "
        "d=$(findmnt -no SOURCE /srv/d); echo 1 > /sys/fs/ext4/${d##*/}/trigger_fs_error"
    )
    seen = rig.node("health")
    assert "filesystem" in [row["kind"] for row in seen["kernel"]]
