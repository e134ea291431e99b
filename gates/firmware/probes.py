"""What Linux can read of the items of a checklist; None is unknown
(schema/machine/checklist.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from schema.observed.hardware import HardwareFacts, Nic
from schema.observed.snapshot import Unreadable

# PCI vendors of the graphics of a server's management controller (ASPEED, Matrox).
MANAGEMENT = ("0x1a03", "0x102b")
INTEL, AMD = "0x8086", "0x1002"
# A hardware clock that lost its power starts at its epoch: days off, not an hour of time zone.
CLOCK_LOST_S = 2 * 86400

Answer = tuple[bool | None, str]


def _wol(facts: HardwareFacts, cards: Sequence[Nic]) -> Answer:
    if not cards:
        return None, "no card that carries the LAN address"
    said: list[str] = []
    answers: list[bool | None] = []
    for nic in cards:
        if isinstance(nic.wol, Unreadable):
            said.append(f"{nic.name}: {nic.wol.unreadable}")
            answers.append(None)
        else:
            said.append(f"{nic.name}: supports {nic.wol.supports or 'none'}, set {nic.wol.set}")
            answers.append(nic.wol.armed)
    worst = False if False in answers else None if None in answers else True
    return worst, "; ".join(said)


def integrated(facts: HardwareFacts) -> str | None:
    """The slot of graphics that are part of the processor; None where none is known.

    Intel's sit on bus 0, cards behind a bridge; AMD's processors carry it in their name.
    """
    rows = () if isinstance(facts.graphics, Unreadable) else facts.graphics
    for row in rows:
        if row.vendor == INTEL and row.slot.startswith("0000:00:"):
            return row.slot
        if row.vendor == AMD and "radeon" in facts.processor.lower():
            return row.slot
    return None


def connected(facts: HardwareFacts) -> list[str]:
    """The connectors on which a sink is seen."""
    rows = () if isinstance(facts.displays, Unreadable) else facts.displays
    return [row.connector for row in rows if row.status == "connected"]


def _display(facts: HardwareFacts, cards: Sequence[Nic]) -> Answer:
    """Whether POST has something to show. A sink that is seen does not prove that POST passes."""
    if connected(facts):
        return True, f"a sink on {', '.join(connected(facts))}"
    slot = integrated(facts)
    if slot:
        return True, f"integrated graphics at {slot}"
    rows = () if isinstance(facts.graphics, Unreadable) else facts.graphics
    managed = [row.slot for row in rows if row.vendor in MANAGEMENT]
    if managed:
        return True, f"a management controller's graphics at {managed[0]}"
    if isinstance(facts.displays, Unreadable):
        return None, facts.displays.unreadable
    if not facts.displays:
        return None, "no connector in /sys/class/drm (NVIDIA's need nvidia-drm.modeset=1)"
    names = ", ".join(row.connector for row in facts.displays)
    return False, f"no sink on {names}, and no integrated graphics"


def _boot_order(facts: HardwareFacts, cards: Sequence[Nic]) -> Answer:
    if isinstance(facts.efi, Unreadable):
        return None, facts.efi.unreadable
    entries = facts.efi.entries
    first = next((n for n in facts.efi.order if n in entries and entries[n].active), None)
    if first is None or facts.efi.current is None:
        return None, "efibootmgr names no first entry, or not the one that was booted"
    names = [
        f"{n} ({entries[n].label if n in entries else 'gone'})" for n in (first, facts.efi.current)
    ]
    return first == facts.efi.current, f"first is {names[0]}, booted was {names[1]}"


def _sleep_targets(facts: HardwareFacts, cards: Sequence[Nic]) -> Answer:
    if isinstance(facts.sleep, Unreadable):
        return None, facts.sleep.unreadable
    awake = [name for name, state in facts.sleep.items() if state != "masked"]
    return not awake, f"not masked: {', '.join(awake)}" if awake else "masked"


def _clock_battery(facts: HardwareFacts, cards: Sequence[Nic]) -> Answer:
    if isinstance(facts.clock, Unreadable):
        return None, facts.clock.unreadable
    off = abs(facts.clock.unix_s - facts.clock_unix_s)
    if off > CLOCK_LOST_S:
        return False, f"{facts.clock.name} is {off / 86400:.0f} days off"
    if facts.clock.battery is None:
        return None, f"{facts.clock.name} does not report its battery"
    return facts.clock.battery == "okay", f"{facts.clock.name}: battery {facts.clock.battery}"


PROBES: dict[str, Callable[[HardwareFacts, Sequence[Nic]], Answer]] = {
    "wol": _wol,
    "display": _display,
    "boot_order": _boot_order,
    "sleep_targets": _sleep_targets,
    "clock_battery": _clock_battery,
}
