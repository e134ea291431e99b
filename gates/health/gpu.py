"""GPUs: lost, faulty memory, held clocks, heat; the driver's library and CDI beside its module."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from gates.core.check import deploy_command, per_node
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.health.part import health_of, known, remedy_for, this_boot, told
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.health import DriverHealth, GpuHealth, Unknown
from schema.observed.snapshot import NodeSnapshot

# What holds a clock down that no owner has set: heat and power. A power cap is the card's usual
# state under load and says nothing.
HELD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
BUSY_PERCENT = 90
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


def reboot(plan: Plan, node: Node) -> str:
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
                    remedy_for(snapshot, fallen[-1], reboot(plan, node)))  # fmt: skip
        return
    silent = [
        row.slot
        for row in known(health.pci, ())
        if row.driver == "nvidia" and row.kind == "gpu" and place(row.slot) not in answering
    ]
    if answering and silent:
        yield _lost(node, f"on the bus: {', '.join(silent)}; nvidia-smi lists "
                    f"{', '.join(gpu.bus_id for gpu in gpus_of(snapshot))}",
                    reboot(plan, node))  # fmt: skip
    if isinstance(health.gpus, Unknown) and GONE.search(health.gpus.unreadable):
        yield _lost(node, health.gpus.unreadable, reboot(plan, node))
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
                remedy=by_reset if "reset" in wanted else reboot(plan, node),
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
            else reboot(plan, node),
        )


@per_node
def gpu_throttled(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A GPU that heat or power holds down: tok/s halves, and nothing is in any log (D3)."""
    for gpu in gpus_of(snapshot):
        held = [reason for reason in gpu.reasons if reason in HELD]
        busy = (gpu.busy_percent or 0) >= BUSY_PERCENT
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
            remedy=reboot(plan, node),
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
GATES = (gpu_memory, gpu_throttled, gpu_hot, persistence, cdi_stale)
