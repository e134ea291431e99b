"""Disks, memory and the kernel itself: errors, wear, what hangs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from gates.core.check import Observed, per_node
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.health.gpu import reboot
from gates.health.part import DAY_S, health_of, known, recent, remedy_for, this_boot, told
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.health import KernelLine, Smart
from schema.observed.snapshot import NodeSnapshot, Unreadable

PANIC_S = 7 * DAY_S
WORN_PERCENT = 100


# a filesystem that its kernel will not write to any more
STOPPED = re.compile("read-only|readonly|shut down")


def _on_fixed(snapshot: NodeSnapshot, line: KernelLine) -> bool:
    """Whether a line is about a disk of this machine: an unplugged stick has I/O errors, too."""
    device = line.device or ""
    names = known(health_of(snapshot).fixed, ())
    if line.kind == "nvme":  # the controller nvme0 of the disk nvme0n1
        return any(name.startswith(f"{device}n") for name in names)
    if line.kind == "filesystem" and device.startswith(("dm-", "md")):
        return True
    return any(re.fullmatch(rf"{name}({'p' * name[-1].isdigit()}\d+)?", device) for name in names)


@per_node
def disk_errors(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """I/O errors of a fixed disk, or of a filesystem on one, since the boot: a change on it may end
    half-way (D18). ext4 goes on after an error, unless it is told otherwise.
    """
    lines = [x for x in this_boot(snapshot, "disk", "nvme", "filesystem")
             if _on_fixed(snapshot, x)
             and not (x.kind == "filesystem" and STOPPED.search(x.text))]  # fmt: skip
    for device in dict.fromkeys(line.device for line in lines):
        same = [line for line in lines if line.device == device]
        yield violation(
            "disk-errors",
            node.name,
            f"{device} of {node.name} has errors",
            evidence=told(same),
            remedy=remedy_for(
                snapshot, same[-1],
                f"copy what matters from {node.name} first (docs/runbooks/backup.md); on it: sudo "
                f"smartctl -a {shlex.quote(f'/dev/{device}')}"),
        )  # fmt: skip


@per_node
def disk_read_only(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A filesystem that its kernel made read-only after an error: nothing is written any more.

    XFS says so in the kernel's log alone, and so does ext4 from Linux 6.12 until
    6.15, and in Debian's 6.1.0-50.
    """
    lines = [x for x in this_boot(snapshot, "filesystem") if STOPPED.search(x.text)]
    seen = "/proc/self/mountinfo: mounted rw, the filesystem is ro"
    paths = known(health_of(snapshot).read_only, ())
    stopped = [(path, "; ".join((seen, told(lines))) if lines else seen) for path in paths]
    if not paths:
        ours = [x for x in lines if _on_fixed(snapshot, x)]
        stopped = [(f"the filesystem on {x.device}", told([x])) for x in ours[-1:]]
    for what, evidence in stopped:
        yield violation(
            "disk-read-only",
            node.name,
            f"{what} of {node.name} turned read-only by itself",
            evidence=evidence,
            remedy=f"on {node.name}: sudo dmesg | grep -i -e ext4 -e xfs -e btrfs -e 'I/O error'; "
            "then fsck from another system",
        )


@per_node
def disk_wear(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """What an NVMe disk says of itself: warnings, media errors, spare blocks, wear."""
    for disk in known(health_of(snapshot).disks, ()):
        smart = known(disk.smart, None)
        signs = [] if smart is None else _signs(smart)
        if disk.state is not None and disk.state not in ("live", "connecting", "resetting", "new"):
            signs.append(f"its controller is {disk.state}")
        if signs:
            yield violation(
                "disk-wear",
                node.name,
                f"the disk {disk.name} of {node.name} says of itself: {', '.join(signs)}",
                evidence=f"{disk.model or 'its model is unknown'}, by "
                + (smart.source if smart else "sysfs"),
                remedy="copy what matters elsewhere (docs/runbooks/backup.md), then replace it",
            )


def _signs(smart: Smart) -> list[str]:
    spare = smart.spare is not None and smart.spare_least is not None
    return [text for is_so, text in (
        (smart.warning, f"critical warning 0x{smart.warning or 0:02x}"),
        (smart.media_errors, f"{smart.media_errors} media errors"),
        (spare and (smart.spare or 0) < (smart.spare_least or 0),
         f"spare blocks {smart.spare} %, at least {smart.spare_least} %"),
        ((smart.used_percent or 0) >= WORN_PERCENT, f"{smart.used_percent} % of its life used"),
    ) if is_so]  # fmt: skip


@per_node
def kernel_crash(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A kernel that crashed, locked up, or died in a former boot: nothing on it is sound (D6)."""
    lines = this_boot(snapshot, "oops", "lockup")
    kept = known(health_of(snapshot).kernel, ())
    panics = recent(snapshot, [x for x in kept if x.kind == "panic"], PANIC_S)
    for found, words in ((lines, "has crashed or locked up"), (panics, "has panicked")):
        if found:
            yield violation(
                "kernel-crash",
                node.name,
                f"the kernel of {node.name} {words}",
                evidence=told(found),
                remedy=remedy_for(
                    snapshot,
                    found[-1],
                    "keep the lines (sudo journalctl -k -b -1, /var/lib/systemd/pstore), then "
                    f"{reboot(plan, node)}",
                ),
            )


@per_node
def machine_check(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A hardware error that the processor or the memory controller reported."""
    lines = this_boot(snapshot, "mce", "edac")
    if lines:
        yield violation(
            "machine-check",
            node.name,
            f"the processor or the memory of {node.name} reported a hardware error",
            evidence=told(lines),
            remedy=remedy_for(snapshot, lines[-1], f"on {node.name}: sudo ras-mc-ctl --summary (or "
                              "journalctl -k | grep -i -e mce -e EDAC); test its memory"),
        )  # fmt: skip


@per_node
def task_hung(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A process that the kernel cannot wake: it holds its memory, and no signal ends it."""
    lines = recent(snapshot, this_boot(snapshot, "hung"))
    own = snapshot.engine_processes
    pids = () if isinstance(own, Unreadable) else tuple(process.pid for process in own)
    stuck = [x for x in health_of(snapshot).stuck if x.pid in pids or x.name.startswith("nvidia-")]
    if lines or stuck:
        said = "; ".join(f"{x.name} (pid {x.pid}) in uninterruptible sleep" for x in stuck)
        yield violation(
            "task-hung",
            node.name,
            f"a process of {node.name} hangs inside the kernel",
            evidence="; ".join(filter(None, (said, told(lines) if lines else ""))),
            remedy=remedy_for(snapshot, lines[-1], reboot(plan, node))
            if lines
            else reboot(plan, node),
        )


def no_failing_disk(plan: Plan, observed: Observed) -> list[Violation]:
    """Before what writes a lot or may not come back: here a failing disk blocks."""
    found = [*disk_errors(plan, observed), *disk_read_only(plan, observed)]
    return [replace(v, severity="block") if v.code in ("disk-errors", "disk-read-only") else v
            for v in found]  # fmt: skip


GATES = (disk_errors, disk_read_only, disk_wear, kernel_crash, machine_check, task_hung)
