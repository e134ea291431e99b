"""GPUs, disks, links and memory that fail."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TypeVar

from gates.core import (
    Gate,
    Observed,
    Violation,
    answering_nodes,
    deploy_command,
    per_node,
    require,
    violation,
)
from schema.compatibility import Xid, XidTable
from schema.plan import Node, Plan
from schema.snapshot import (
    Counters,
    DriverHealth,
    GpuHealth,
    Health,
    KernelLine,
    Network,
    NodeSnapshot,
    PciDevice,
    Smart,
    Unknown,
    Unreadable,
)

# What the machine says of its own GPUs, links, disks and kernel, judged.

# A part of the section `health`, and lines of the kernel by boot and age.

T = TypeVar("T")
DAY_S = 86400.0
# The same trouble in this boot and in two before it is no accident: a reboot has not mended it.
BOOTS = 3
INSPECT = (
    "the same in {boots} boots, so another reboot mends nothing: inspect the hardware (seat the "
    "card and its power cable anew, another slot, a test of the memory; then its vendor)"
)


def known(value: T | Unknown, default: T) -> T:
    """The part, or `default` where it could not be read, which `parts_known` tells."""
    return default if isinstance(value, Unknown) else value


def health_of(snapshot: NodeSnapshot) -> Health:
    """The section; UnknownSection where it could not be read."""
    return require(snapshot.health, "health")


def this_boot(snapshot: NodeSnapshot, *kinds: str) -> list[KernelLine]:
    """The kernel's lines of these kinds since the boot, oldest first."""
    boot = snapshot.identity.boot_id
    lines = known(health_of(snapshot).kernel, ())
    return [line for line in lines if line.boot == boot and line.kind in kinds]


def recent(
    snapshot: NodeSnapshot, lines: Sequence[KernelLine], within_s: float = DAY_S
) -> list[KernelLine]:
    """Those of the last `within_s` seconds."""
    now = snapshot.identity.clock_unix_s
    return [line for line in lines if line.unix_s is not None and now - line.unix_s < within_s]


def boots_with(snapshot: NodeSnapshot, line: KernelLine) -> int:
    """In how many boots the kernel said the same of the same device, this one included."""
    lines = known(health_of(snapshot).kernel, ())
    what = (line.kind, line.number, line.device)
    same = {x.boot for x in lines if (x.kind, x.number, x.device) == what}
    return len(same - {None})


def remedy_for(snapshot: NodeSnapshot, line: KernelLine, usual: str) -> str:
    """What is done about a line: the usual, or, when reboots have not helped, the hardware."""
    boots = boots_with(snapshot, line)
    return INSPECT.format(boots=boots) if boots >= BOOTS else usual


def told(lines: Sequence[KernelLine]) -> str:
    """The last line with its time, and how many there are."""
    last = lines[-1]
    when = (
        f"{datetime.fromtimestamp(last.unix_s, timezone.utc):%Y-%m-%d %H:%M:%S} UTC: "
        if last.unix_s is not None
        else ""
    )
    more = f" ({len(lines)} such lines)" if len(lines) > 1 else ""
    return f"kernel, {when}{last.text}{more}"


@per_node
def parts_known(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A part that could not be read is told, and stops nothing: whether the GPUs answer at all is
    asked of the section `gpus`. A rig that needs none may have a driver without a GPU, as in a
    container.
    """
    health = health_of(snapshot)
    parts = {name: getattr(health, name) for name in type(health).model_fields}
    parts |= {f"SMART of {disk.name}": disk.smart for disk in known(health.disks, ())}
    for name, part in parts.items():
        needed = name != "gpus" or plan.recipe.expect.needs_nvidia
        if isinstance(part, Unknown) and needed:
            yield violation(
                "health-unreadable",
                node.name,
                f"{name} of {node.name}'s health could not be read",
                evidence=part.unreadable,
                remedy=f"on {node.name}: mend what the evidence names, then run this again",
                severity="warn",
                unknown=True,
            )


PART_GATES = (parts_known,)


# GPUs: lost, faulty memory, held clocks, heat; the driver's library and CDI beside its module.

# What holds a clock down that no owner has set: heat and power. A power cap is the card's usual
# state under load and says nothing.
HELD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
GPU_BUSY_PERCENT = 90
# GB10s with a faulty power delivery ran at 695 to 890 of 3003 MHz under full load; a capped card
# that is well keeps above half.
SLOW_SHARE = 0.4
# The load is over since the utilization was counted; clocks that somebody set.
ON_PURPOSE = {"gpu_idle", "applications_clocks_setting"}
# Degrees to the temperature at which the card slows down.
HOT_C = 3.0
GONE = re.compile("GPU is lost|off the bus")


def gpus_of(snapshot: NodeSnapshot) -> tuple[GpuHealth, ...]:
    """The GPUs that tell of themselves; none where they could not be asked."""
    return known(health_of(snapshot).gpus, ())


def place(bus_id: str) -> str:
    """A PCI address without the function and leading zeros of its domain: `0:9b:00`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain or '0', 16):x}:{rest.partition('.')[0]}"


def reboot_gpu(plan: Plan, node: Node) -> str:
    """The command that reboots one node."""
    return f"{deploy_command(plan, 'reboot', f'only={node.name}')} -y"


@per_node
def gpu_lost(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A GPU that fell off the bus, or that the driver will not use again (Xid 79; D14).

    A card that answers now is not lost, whatever the log says of the past.
    """
    if not plan.recipe.expect.needs_nvidia:
        return
    health = health_of(snapshot)
    answering = {place(gpu.bus_id) for gpu in gpus_of(snapshot)}
    fallen = [
        line
        for line in this_boot(snapshot, "gpu-lost", "xid")
        if (line.kind == "gpu-lost" or line.number == 79)
        and place(line.device or "") not in answering
    ]
    if fallen:
        yield _lost(node, told(fallen),
                    remedy_for(snapshot, fallen[-1], reboot_gpu(plan, node)))  # fmt: skip
        return
    silent = [
        row.slot
        for row in known(health.pci, ())
        if row.driver == "nvidia" and row.kind == "gpu" and place(row.slot) not in answering
    ]
    if answering and silent:
        yield _lost(node, f"on the bus: {', '.join(silent)}; nvidia-smi lists "
                    f"{', '.join(gpu.bus_id for gpu in gpus_of(snapshot))}",
                    reboot_gpu(plan, node))  # fmt: skip
    if isinstance(health.gpus, Unknown) and GONE.search(health.gpus.unreadable):
        yield _lost(node, health.gpus.unreadable, reboot_gpu(plan, node))
    for gpu in gpus_of(snapshot):
        if gpu.recovery is not None and gpu.recovery.lower() != "none":
            wanted = gpu.recovery.lower()
            stop = deploy_command(plan, "stop")
            by_reset = f"{stop}; on {node.name}: sudo nvidia-smi --gpu-reset"
            yield violation(
                "gpu-lost",
                node.name,
                f"the driver of {node.name} asks for a recovery of its GPU {gpu.bus_id}: {wanted}",
                evidence=f"nvidia-smi -q says of it: {gpu.recovery}",
                remedy=by_reset if "reset" in wanted else reboot_gpu(plan, node),
            )


def _lost(node: Node, evidence: str, remedy: str) -> Violation:
    return violation(
        "gpu-lost",
        node.name,
        f"{node.name} has lost a GPU: it no longer answers on its bus",
        evidence=evidence,
        remedy=remedy,
    )


@per_node
def gpu_memory(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Errors of the GPU's memory that ECC could not correct, and repairs that wait or failed.

    What ECC ever corrected, and rows that were remapped in time, are no trouble.
    """
    for gpu in gpus_of(snapshot):
        worn = [text for is_so, text in (
            (gpu.remap_failed, "a repair of its memory failed"),
            (gpu.sram_over, "its SRAM has more errors than NVIDIA allows"),
        ) if is_so]  # fmt: skip
        waits = [text for is_so, text in (
            (gpu.remap_pending, "a repair of its memory waits for a reset"),
            ((gpu.ecc_now or 0) > 0, f"{gpu.ecc_now} uncorrected errors since the driver loaded"),
        ) if is_so]  # fmt: skip
        if not worn and not waits:
            continue
        yield violation(
            "gpu-memory-errors",
            node.name,
            f"GPU {gpu.bus_id} of {node.name}: {'; '.join((*worn, *waits))}",
            evidence=f"nvidia-smi -q: uncorrected {gpu.ecc_now} now, {gpu.ecc_ever} ever; rows "
            f"remapped {gpu.remapped}, pending {gpu.remap_pending}, failed {gpu.remap_failed}",
            remedy="ask its vendor for another card (nvidia-bug-report.sh makes what they want)"
            if worn
            else reboot_gpu(plan, node),
        )


@per_node
def gpu_throttled(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A GPU that heat or power holds down: tok/s halves, and nothing is in any log (D3)."""
    for gpu in gpus_of(snapshot):
        held = [reason for reason in gpu.reasons if reason in HELD]
        busy = (gpu.busy_percent or 0) >= GPU_BUSY_PERCENT
        clock, most = gpu.clock_mhz, gpu.max_clock_mhz
        slow = busy and clock is not None and most is not None and clock < SLOW_SHARE * most
        slow = slow and not ON_PURPOSE.intersection(gpu.reasons) and not _capped(gpu)
        if not held and not slow:
            continue
        yield violation(
            "gpu-throttled",
            node.name,
            f"GPU {gpu.bus_id} of {node.name} is held at {clock} of {most} MHz"
            + (f": {', '.join(held)}" if held else " while it is busy"),
            evidence=f"nvidia-smi -q: {_shown(gpu.power_w, 'W')} of "
            f"{_shown(gpu.power_limit_w, 'W')}, {_shown(gpu.temp_c, '°C')}, busy "
            f"{gpu.busy_percent} %, reasons {', '.join(gpu.reasons) or 'none'}",
            remedy="heat: fans, dust, the room; power: its cables and its supply, then off for "
            "60 s at the wall (a GB10's USB-C supply keeps a fault until then)",
        )


def _capped(gpu: GpuHealth) -> bool:
    """Whether its owner has set a lower limit of power than the card's own, and it is reached."""
    limit, usual = gpu.power_limit_w, gpu.usual_limit_w
    lower = limit is not None and usual is not None and limit < usual
    return lower and "sw_power_cap" in gpu.reasons


@per_node
def gpu_hot(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A GPU within a few degrees of where it slows down: the next long prompt throttles it."""
    for gpu in gpus_of(snapshot):
        left = None
        if gpu.margin_c is not None and gpu.slow_margin_c is not None:
            left = gpu.margin_c - gpu.slow_margin_c
        elif gpu.temp_c is not None and gpu.slow_c is not None:
            left = gpu.slow_c - gpu.temp_c
        if left is not None and left <= HOT_C:
            yield violation(
                "gpu-hot",
                node.name,
                f"GPU {gpu.bus_id} of {node.name} is {left:.0f} °C below where it slows down",
                evidence=f"nvidia-smi -q: {_shown(gpu.temp_c, '°C')}",
                remedy=f"on {node.name}: fans, dust, the room; then nvidia-smi -q -d TEMPERATURE",
            )


def _shown(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.0f} {unit}"


@per_node
def persistence(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Without persistence the driver unloads its state with the last client: a start takes seconds
    longer, and ECC's and Xid's counters begin anew. A display keeps it loaded as well.
    """
    if not plan.recipe.expect.needs_nvidia:
        return
    off = [g.bus_id for g in gpus_of(snapshot) if g.persistence is False and g.display is not True]
    if off:
        yield violation(
            "persistence-off",
            node.name,
            f"persistence mode is off on {node.name}",
            evidence=f"nvidia-smi -q: Persistence Mode Disabled on {', '.join(off)}",
            remedy=f"on {node.name}: sudo systemctl enable --now nvidia-persistenced "
            "(without that unit: sudo nvidia-smi -pm 1, until the next boot)",
        )


def _driver(snapshot: NodeSnapshot) -> DriverHealth:
    return known(health_of(snapshot).driver, DriverHealth())


@per_node
def driver_library(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """User space was upgraded under the running module: what runs goes on, and the next start ends
    with `driver/library version mismatch` (D12).
    """
    driver = _driver(snapshot)
    if not plan.recipe.expect.needs_nvidia or driver.module is None or not driver.libraries:
        return
    if driver.module not in driver.libraries:
        yield violation(
            "driver-library",
            node.name,
            f"the NVIDIA module of {node.name} is {driver.module}, its libraries are "
            f"{', '.join(driver.libraries)}",
            evidence=f"/proc/driver/nvidia/version: {driver.module}; libnvidia-ml.so of "
            f"{', '.join(driver.libraries)}",
            remedy=reboot_gpu(plan, node),
        )


@per_node
def cdi_stale(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A CDI spec of a former driver names libraries that are gone: running containers go on, the
    next one is not created (D13).
    """
    driver = _driver(snapshot)
    if plan.recipe.container is None or driver.module is None:
        return
    for path, versions in driver.cdi.items():
        if driver.module not in versions:
            yield violation(
                "cdi-stale",
                node.name,
                f"{path} of {node.name} is of driver {', '.join(versions)}, {driver.module} runs",
                evidence=f"{path} names libraries of {', '.join(versions)}",
                remedy=f"on {node.name}: sudo nvidia-ctk cdi generate --output={shlex.quote(path)}",
            )


# Asked before each start, too: they cost nothing, and a start on such a card fails or crawls.
CHEAP = (gpu_lost, driver_library)
GPU_HEALTH_GATES = (gpu_memory, gpu_throttled, gpu_hot, persistence, cdi_stale)


# Disks, memory and the kernel itself: errors, wear, what hangs.

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
                    f"{reboot_gpu(plan, node)}",
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
            remedy=remedy_for(snapshot, lines[-1], reboot_gpu(plan, node))
            if lines
            else reboot_gpu(plan, node),
        )


def no_failing_disk(plan: Plan, observed: Observed) -> list[Violation]:
    """Before what writes a lot or may not come back: here a failing disk blocks."""
    found = [*disk_errors(plan, observed), *disk_read_only(plan, observed)]
    return [replace(v, severity="block") if v.code in ("disk-errors", "disk-read-only") else v
            for v in found]  # fmt: skip


HOST_HEALTH_GATES = (disk_errors, disk_read_only, disk_wear, kernel_crash, machine_check, task_hung)


# PCIe links and network cards: narrower or slower than they can be, with errors, or volatile.

# A GPU takes its link down to Gen1 while it idles.
LINK_BUSY_PERCENT = 50
# Corrected errors an hour; two 5090s with a bad link had thousands (vllm#14628).
CORRECTED_PER_HOUR = 1000.0
# Replays an hour: DCGM takes more than 8 a minute for a fault (dcgm_gpu_hardware_limits.h).
REPLAYS_PER_HOUR = 480.0
# NVSentinel's link-counter-detection: any, or more than so many a second.
PER_SECOND = {"link_downed": 0.0, "rnr_nak_retry_err": 0.0, "symbol_error": 10.0,
              "roce_slow_restart": 10.0}  # fmt: skip
CARRIER_CHANGES = 2
# What a link counts when the other end reboots: no error of the cable's.
BOOT_S = 120.0
PEER = ("link_downed", "carrier_changes")


def _least(one: float | None, other: float | None) -> float | None:
    """What both ends can; None where one of them does not say."""
    return None if one is None or other is None else min(one, other)


def _short(row: PciDevice) -> str | None:
    """How a link falls short of what the card and its slot can, in words."""
    lanes, speed = _least(row.card_width, row.port_width), _least(row.card_speed, row.port_speed)
    if row.width is not None and lanes is not None and row.width < lanes:
        return f"x{row.width} of x{lanes:.0f}"
    # an idle GPU's speed says nothing; its own answer under load is asked below
    if row.kind != "gpu" and row.speed is not None and speed is not None and row.speed < speed:
        return f"{row.speed:g} of {speed:g} GT/s"
    return None


@per_node
def pcie_link(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A card that was re-seated, or a second controller at Gen5 x2: slow, and no log says so (D4).

    The measure is what the card and the port before it can, so a slot of eight lanes is no fault.
    """
    for row in known(health_of(snapshot).pci, ()):
        short = _short(row)
        if short:
            evidence = (
                f"sysfs: {row.speed} GT/s x{row.width}; the card {row.card_speed} GT/s "
                f"x{row.card_width}, its port {row.port_speed} GT/s x{row.port_width}"
            )
            yield _narrow(node, f"{row.kind} {row.slot}", short, evidence)
    for gpu in gpus_of(snapshot):
        busy = (gpu.busy_percent or 0) >= LINK_BUSY_PERCENT
        if busy and gpu.link_gen and gpu.max_link_gen and gpu.link_gen < gpu.max_link_gen:
            yield _narrow(node, f"gpu {gpu.bus_id}", f"Gen{gpu.link_gen} of Gen{gpu.max_link_gen}",
                          f"nvidia-smi -q: PCIe generation {gpu.link_gen}, at most "
                          f"{gpu.max_link_gen}, busy {gpu.busy_percent} %")  # fmt: skip


def _narrow(node: Node, what: str, short: str, evidence: str) -> Violation:
    return violation(
        "pcie-link",
        node.name,
        f"the PCIe link of {what} on {node.name} is {short}",
        evidence=evidence,
        remedy=f"power {node.name} off, seat the card (or its riser) anew, look at the BIOS's "
        "setting of that slot",
    )


@per_node
def pcie_errors(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A fatal error of AER, or a link that corrects or sends again all the time.

    A head ran degraded for nine hours after a fatal AER on its CX-7 (D2). Nonfatal errors are not
    told: devices that are well log unsupported requests at each boot.
    """
    lines = [x for x in this_boot(snapshot, "aer") if "(Fatal)" in x.text or "=Fatal" in x.text]
    for device in dict.fromkeys(line.device for line in lines):
        same = [line for line in lines if line.device == device]
        yield _errors(node, str(device), "a fatal error", told(same),
                      remedy_for(snapshot, same[-1], reboot_gpu(plan, node)))  # fmt: skip
    hours = max(snapshot.identity.uptime_s / 3600, 1.0)
    for row in known(health_of(snapshot).pci, ()):
        told_already = any(line.device == row.slot for line in lines)
        fatal, corrected = row.errors.get("fatal", 0), row.errors.get("correctable", 0)
        if fatal and not told_already:
            yield _errors(node, f"{row.kind} {row.slot}", f"{fatal} fatal errors since the boot",
                          f"sysfs: aer_dev_fatal {fatal}", reboot_gpu(plan, node))  # fmt: skip
        if corrected / hours > CORRECTED_PER_HOUR:
            yield _errors(
                node, f"{row.kind} {row.slot}", f"{corrected / hours:.0f} corrected errors an hour",
                f"sysfs: aer_dev_correctable {corrected} in {hours:.0f} h",
                "another slot, riser or cable; a BIOS update; the slot at one generation less",
            )  # fmt: skip

    for gpu in gpus_of(snapshot):
        if (gpu.replays or 0) / hours > REPLAYS_PER_HOUR:
            yield _errors(
                node, f"gpu {gpu.bus_id}", f"{(gpu.replays or 0) / hours:.0f} replays an hour",
                f"nvidia-smi -q: {gpu.replays} replays in {hours:.0f} h",
                "another slot, riser or cable; a BIOS update; the slot at one generation less",
            )  # fmt: skip


def _errors(node: Node, what: str, how_many: str, evidence: str, remedy: str) -> Violation:
    return violation(
        "pcie-errors",
        node.name,
        f"{what} of {node.name} has {how_many} on PCIe",
        evidence=evidence,
        remedy=remedy,
    )


def _links(plan: Plan, node: Node, snapshot: NodeSnapshot) -> set[str]:
    """The links that the fabric runs on: its device, that one's slaves, those of RDMA ports."""
    device = plan.requests[node.name].fabric_device
    if not isinstance(snapshot.network, Network):
        return set()
    slaves = [s for link in snapshot.network.links if link.name == device for s in link.slaves]
    ports = [port.netdev for port in snapshot.network.rdma]
    return {name for name in (device, *slaves, *ports) if name}


def nic_errors(plan: Plan, observed: Observed) -> list[Violation]:
    """Counters of the fabric that grow now, and what mlx5 says of its card.

    A counter's value counts from the boot or the driver's load: only what was added counts. The
    line `insufficient power … 27W` stands on Sparks that are well (dgx-spark-playbooks PR 108).
    """
    up_s = {node.name: 0.0 for node in plan.rig.nodes}
    up_s |= {n.name: seen.identity.uptime_s for n, seen in answering_nodes(plan, observed)}

    @per_node
    def of_node(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        others = [seconds for name, seconds in up_s.items() if name != node.name]
        yield from _nic_errors(plan, node, snapshot, min(others, default=math.inf))

    return of_node(plan, observed)


def _nic_errors(
    plan: Plan, node: Node, snapshot: NodeSnapshot, peer_up_s: float
) -> Iterator[Violation]:
    """Of one node; `peer_up_s` says since when all others are up (0: one does not answer)."""
    counters = known(health_of(snapshot).counters, Counters())
    links = _links(plan, node, snapshot)
    grown = []
    for key, count in counters.grew.items():
        place, _, name = key.rpartition(" ")
        if name in PEER and peer_up_s < counters.seconds + BOOT_S:
            continue
        if name == "carrier_changes":
            grown += [key] if count > CARRIER_CHANGES and place in links else []
        elif name in PER_SECOND and count / max(counters.seconds, 0.001) > PER_SECOND[name]:
            grown.append(key)
    if grown:
        said = ", ".join(f"{key} +{counters.grew[key]}" for key in grown)
        yield violation(
            "nic-errors",
            node.name,
            f"the fabric's links on {node.name} have errors now",
            evidence=f"in {counters.seconds:g} s: {said}",
            remedy="seat the cable at both ends, or take another one; then look again",
        )
    lines = this_boot(snapshot, "nic")
    if lines:
        yield violation(
            "nic-errors",
            node.name,
            f"the network card {lines[-1].device} of {node.name} reports a fault",
            evidence=told(lines),
            remedy=remedy_for(
                snapshot,
                lines[-1],
                f"{reboot_gpu(plan, node)}; if it comes again: off for 60 s at the wall",
            ),
        )


def _numbers(version: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", version)]


def nic_firmware(plan: Plan, observed: Observed) -> list[Violation]:
    """Cards of one model with two firmwares: one end may lack what the other was mended for."""
    seen: dict[str, dict[str, list[str]]] = {}
    last: dict[tuple[str, str], str] = {}
    for node, snapshot in answering_nodes(plan, observed):
        ports = snapshot.network.rdma if isinstance(snapshot.network, Network) else ()
        for port in ports:
            if port.board and port.firmware:
                where = f"{node.name} {port.device}"
                seen.setdefault(port.board, {}).setdefault(port.firmware, []).append(where)
                last[port.board, port.firmware] = node.name
    found = []
    for board, versions in seen.items():
        if len(versions) > 1:
            behind = last[board, min(versions, key=_numbers)]
            listed = "; ".join(f"{v}: {', '.join(at)}" for v, at in sorted(versions.items()))
            found.append(
                violation(
                    "nic-firmware",
                    behind,
                    f"the network cards {board} of the rig have {len(versions)} firmwares",
                    evidence=listed,
                    remedy=f"on {behind}: sudo fwupdmgr refresh; sudo fwupdmgr update",
                )
            )
    return found


@per_node
def address_survives(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A fabric address that was set by hand with `ip addr add` is gone after the next boot.

    A link-local one is in no file: the host makes it anew at each boot (NVIDIA's playbook for two
    Sparks has netplan do so), and `rdma-address` tells what NCCL makes of it.
    """
    files = known(health_of(snapshot).addresses, {})
    address = str(node.fabric_address)
    if not files or not isinstance(snapshot.network, Network) or node.fabric_address is None:
        return
    if node.fabric_address.is_link_local:
        return
    holds = [link.name for link in snapshot.network.links
             if any(row.partition("/")[0] == address for row in link.addresses)]  # fmt: skip
    if holds and address not in files:
        yield violation(
            "fabric-volatile",
            node.name,
            f"the fabric address {address} of {node.name} would not survive a reboot",
            evidence=f"{holds[0]} has it, and no file of netplan, NetworkManager, networkd or "
            "ifupdown names it, no lease, no unit and no script of /usr/local",
            remedy=f"on {node.name}: write it into /etc/netplan or with nmcli connection modify, "
            f"for {shlex.quote(holds[0])}",
        )


LINK_GATES = (pcie_link, pcie_errors, nic_errors, nic_firmware, address_survives)


# Xids: what the driver said of a GPU, and what NVIDIA says to do about it first.

# What NVIDIA says to ignore, and what another Xid explains.
SILENT = ("none", "follow")


def xids(table: XidTable) -> Gate:
    """The gate about the Xids of this boot; catalog/xids.yaml is the table."""

    @per_node
    def gpu_xid(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """One finding for each GPU and code. An Xid that a restart mends is forgotten after a day:
        the engine that met it is long another.
        """
        lines = this_boot(snapshot, "xid")
        for device, number in dict.fromkeys((line.device, line.number) for line in lines):
            same = [line for line in lines if (line.device, line.number) == (device, number)]
            xid = table.find(number or 0)
            if xid.action == "restart_engine":
                same = recent(snapshot, same)
            if xid.action in SILENT or not same:
                continue
            what = xid.what or xid.name
            yield violation(
                "gpu-xid",
                node.name,
                f"GPU {device} of {node.name}: Xid {number}, {what}",
                evidence=told(same),
                remedy=remedy_for(snapshot, same[-1], _action(plan, node, xid)),
                cause=f"Xid {number}, {xid.name}; NVIDIA's first action: {xid.action} "
                f"({table.date})",
            )

    return gpu_xid


def _action(plan: Plan, node: Node, xid: Xid) -> str:
    restart, stop = deploy_command(plan, "restart"), deploy_command(plan, "stop")
    report = "sudo nvidia-bug-report.sh"
    return {
        "restart_engine": restart,
        "reset_gpu": f"{stop}; on {node.name}: sudo nvidia-smi --gpu-reset; where the driver "
        f"refuses that: {reboot_gpu(plan, node)}",
        "reboot": reboot_gpu(plan, node),
        "nvlink": f"{stop}; on {node.name}: nvidia-smi nvlink -e, then {reboot_gpu(plan, node)}",
        "power_cable": f"power {node.name} off and seat the card's power cables",
        "update": f"update the driver of {node.name}, then {reboot_gpu(plan, node)}",
        "support": f"on {node.name}: {report}, and show it to the card's vendor",
    }.get(xid.action, f"on {node.name}: {report}; {restart}")
