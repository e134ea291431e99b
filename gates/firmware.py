"""The machine below the kernel: firmware checklists, what keeps it alive, its boots."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gates.core import (
    MIB,
    Gate,
    Observed,
    Violation,
    answering_nodes,
    deploy_command,
    gib,
    per_node,
    require,
    section_unreadable,
    violation,
)
from schema.core import SpecError
from schema.hardware import (
    Board,
    Checklist,
    HardwareFacts,
    Item,
    MachineSnapshot,
    Nic,
    Wol,
    checklist_for,
    lan_cards,
    recorded,
    standing,
)
from schema.host import Boot, HostFacts, HostSettings, HostWanted, Kill
from schema.plan import Node, Plan
from schema.render_host import OFF, PANICS, guard_argv
from schema.snapshot import ChangeSummary, NodeSnapshot, Unreadable

# A board's checklist: what keeps a headless machine from coming back.

# What Linux can read of the items of a checklist; None is unknown
# (schema/hardware.py).

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


# Firmware and hands: what stands against a machine that nobody can reach (B6, B7, fault 38).

BARE_METAL = "none"
Lists = Mapping[str, Checklist]


@dataclass(frozen=True)
class ItemState:
    """How an item stands: `ok`, `open` (a person has to look), `wrong` or `unknown` (as read)."""

    item: Item
    state: Literal["ok", "open", "wrong", "unknown"]
    said: str


def hardware(snapshot: NodeSnapshot) -> HardwareFacts:
    """The node's hardware; UnknownSection where it was not asked or not answered."""
    if not isinstance(snapshot, MachineSnapshot):
        return require(Unreadable(unreadable="nobody asked for it"), "hardware")
    return require(snapshot.hardware, "hardware")


def own_board(facts: HardwareFacts) -> Board | None:
    """The board, None where the machine does not say."""
    return None if isinstance(facts.board, Unreadable) else facts.board


def cards_of(facts: HardwareFacts, node: Node, named: str | None) -> tuple[Nic, ...]:
    """The cards that must wake the node: the named one, else those of its LAN address."""
    if named is None:
        return lan_cards(facts, str(node.lan_address))
    nics = () if isinstance(facts.nics, Unreadable) else facts.nics
    return tuple(nic for nic in nics if nic.name == named)


def states(
    checklist: Checklist, facts: HardwareFacts, cards: Sequence[Nic], now: float
) -> tuple[ItemState, ...]:
    """How each item of a list stands; `now` is the operator's clock, in Unix seconds."""
    said = recorded(facts)
    found = []
    for item in checklist.items:
        read: Answer | None = PROBES[item.probe](facts, cards) if item.probe else None
        if read and read[0]:
            found.append(ItemState(item, "ok", read[1]))
        elif item.valid_days is not None:
            holds, words = standing(said.get(item.id), item, own_board(facts), now)
            words = f"{read[1]}; {words}" if read else words
            found.append(ItemState(item, "ok" if holds else "open", words))
        else:
            assert read is not None  # schema/hardware.py: read, attested, or both
            found.append(ItemState(item, "unknown" if read[0] is None else "wrong", read[1]))
    return tuple(found)


def rebootable(lists: Lists, now: float, nodes: frozenset[str] | None = None) -> tuple[Gate, ...]:
    """The gate before a reboot of `nodes` (None: all): nobody must be needed at the board.

    A board that shows a sink has, as a rule, somebody who can look: there the finding only warns.
    """

    @per_node
    def hands_needed(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """What a person must have seen at a headless board, before it goes down (38, B6, B7)."""
        if nodes is not None and node.name not in nodes:
            return
        facts = hardware(snapshot)
        if require(facts.virtual, "hardware") != BARE_METAL:
            return
        require(facts.attestations, "hardware")
        board = own_board(facts)
        try:
            checklist = checklist_for(board, lists)
        except SpecError as error:
            require(Unreadable(unreadable=str(error)), "hardware")
            return
        rows = states(checklist, facts, cards_of(facts, node, None), now)
        missing = [row for row in rows if "reboot" in row.item.blocks and row.state != "ok"]
        if not missing:
            return
        listed = "; ".join(
            f"{n}. {row.item.id} = {row.item.expected}: {row.said}"
            for n, row in enumerate(missing, 1)
        )
        names = ",".join(row.item.id for row in missing if row.item.valid_days is not None)
        only = () if len(plan.rig.nodes) == 1 else (f"only={node.name}",)
        yield violation(
            "hands-needed",
            node.name,
            f"{node.name} ({board.title if board else 'board unknown'}) may need somebody's hands "
            f"after a reboot: {len(missing)} of its checklist {checklist.name} not attested",
            evidence=listed,
            remedy=f"{deploy_command(plan, 'firmware', *only)} says how; then "
            f"{deploy_command(plan, 'firmware', f'attest={names}', 'by=YOURNAME', *only)} -y",
            severity="warn" if connected(facts) else "block",
        )

    return (hands_needed,)


@per_node
def wol_unarmed(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A card that could wake the machine and would not: found out when it is down (B7)."""
    facts = hardware(snapshot)
    if require(facts.virtual, "hardware") != BARE_METAL:
        return
    for nic in cards_of(facts, node, None):
        if isinstance(nic.wol, Wol) and nic.wol.able and not nic.wol.armed:
            yield violation(
                "wol-unarmed",
                node.name,
                f"{nic.name} of {node.name} does not wake by a magic packet, and could",
                evidence=f"ethtool: supports {nic.wol.supports}, set {nic.wol.set}; "
                f"{nic.manager} runs the card",
                remedy=deploy_command(plan, "firmware") + " -y",
            )


def card_there(named: str | None, nodes: frozenset[str]) -> Gate:
    """The gate before a card is armed: there is one, by the LAN address or by its name."""

    @per_node
    def wol_card(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """A packet to the wrong card wakes nothing."""
        if node.name not in nodes:
            return
        facts = hardware(snapshot)
        nics = require(facts.nics, "hardware")
        if cards_of(facts, node, named):
            return
        there = ", ".join(f"{nic.name} {nic.mac} {' '.join(nic.addresses)}" for nic in nics)
        what = f"no card {named}" if named else f"no card that carries {node.lan_address}"
        yield violation(
            "wol-card",
            node.name,
            f"{node.name} has {what}",
            evidence=f"cards: {there or 'none'}",
            remedy=deploy_command(plan, "firmware", "nic=CARD", f"only={node.name}"),
        )

    return wol_card


def doctor(lists: Lists, now: float) -> tuple[Gate, ...]:
    """The findings as warnings: they are about the next time that the machine is down."""

    def soft(gate: Gate) -> Gate:
        def run(plan: Plan, observed: Observed) -> list[Violation]:
            return [replace(found, severity="warn") for found in gate(plan, observed)]

        return run

    return tuple(soft(gate) for gate in (*rebootable(lists, now), wol_unarmed))


# Whether a host is still as deploys/host.py left it, what killed what, and what may be armed.
#
# The facts are the doctor's and host.py's own; no serving run asks for them.

Hosts = Mapping[str, HostFacts | Unreadable]
DAY_S = 86400.0
# An engine that serves keeps its own distance from the guard's limit, or a busy hour ends it.
APART = 1.5
# the titles of vLLM's processes, and what they are named before they set them
ENGINES = ("VLLM::", "vllm", "python", "ray")
INSTALL = (
    "sudo systemctl mask --runtime earlyoom.service && sudo apt-get install -y earlyoom && "
    "sudo systemctl unmask --runtime earlyoom.service"
)


def differences(now: HostSettings, wanted: HostWanted) -> list[str]:
    """In what a host is not as it is wanted, a line each."""
    found = [
        f"{name} is {now.sysctls.get(name, 'not in this kernel')}, not {value}"
        for name, value in wanted.sysctls.items()
        if now.sysctls.get(name) != value
    ]
    if wanted.watchdog_s:
        if now.runtime_watchdog_s != wanted.watchdog_s:
            found.append(f"PID 1's watchdog is {now.runtime_watchdog_s:g} s, not "
                         f"{wanted.watchdog_s} s")  # fmt: skip
        if all(device.state == "inactive" for device in now.watchdogs):
            names = ", ".join(device.name for device in now.watchdogs)
            found.append(f"nobody holds a watchdog open ({names or 'there is none'})")
    if not now.journal.persistent:
        found.append("the journal is kept in memory alone")
    if wanted.guard_mib:
        running = now.guard.argv
        if running is None:
            found.append("the memory guard does not run")
        elif running[1:] != guard_argv(wanted.guard_mib)[1:]:
            found.append(f"the memory guard runs with {' '.join(running[1:])[:120]}")
    return found


def command(plan: Plan, wanted: HostWanted) -> str:
    """The run that brings a host back to what is wanted there, with the keys that say so."""
    on = [name for name, values in PANICS.items() if set(values.items()) <= wanted.sysctls.items()]
    keys = [f"journal_mib={wanted.journal_mib}"]
    if wanted.sysctls.keys() >= OFF.keys():
        keys += [f"panic={wanted.sysctls.get('kernel.panic', 10)}"]
        keys += [f"panic_on={','.join(on)}" if on else "panic_on=[]"]
    if wanted.watchdog_s:
        keys.append(f"watchdog={wanted.watchdog_s}")
    keys += [f"memory_guard_mib={wanted.guard_mib}"] if wanted.guard_mib else []
    keys.append(f"memory_guard={'true' if wanted.guard_mib else 'false'}")
    return deploy_command(plan, "host", *keys)


def keeps_alive_findings(plan: Plan, observed: Observed, hosts: Hosts) -> list[Violation]:
    """What the doctor says of each node that answered; what could not be read is told as such."""
    found: list[Violation] = []
    for node, snapshot in answering_nodes(plan, observed):
        facts = hosts[node.name]
        if isinstance(facts, Unreadable):
            found.append(section_unreadable(node.name, "host", facts))
            continue
        for part in ("settings", "boots", "kills"):
            seen = getattr(facts, part)
            if isinstance(seen, Unreadable):
                why = Unreadable(unreadable=f"{part}: {seen.unreadable}")
                found.append(section_unreadable(node.name, "host", why))
        if isinstance(facts.settings, HostSettings):
            found += _drift(plan, node.name, facts.settings)
        if isinstance(facts.kills, tuple):
            found += _kills(plan, node.name, facts.kills, snapshot.identity.clock_unix_s)
    return found


def _drift(plan: Plan, node: str, now: HostSettings) -> Iterator[Violation]:
    wrong = differences(now, now.wanted) if now.wanted else []
    if now.wanted and wrong:
        yield violation(
            "host-differs",
            node,
            f"{node} is no longer set up as host.py left it: {wrong[0]}",
            evidence="; ".join(wrong),
            remedy=f"{command(plan, now.wanted)} -y",
        )


def stamp(unix_s: float) -> str:
    """A time as a person reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))


def _kills(plan: Plan, node: str, kills: tuple[Kill, ...], now: float) -> Iterator[Violation]:
    """What memory ended in the last day; other containers' own limits are their business."""
    last = [
        kill
        for kill in kills
        if 0 <= now - kill.unix_s < DAY_S
        and (not kill.why.startswith("Memory cgroup") or kill.process.startswith(ENGINES))
    ]
    if not last:
        return
    newest = last[-1]
    pid = f" (pid {newest.pid})" if newest.pid else ""
    yield violation(
        "memory-kill",
        node,
        f"memory ran out on {node}: {newest.by} killed {newest.process}{pid} at "
        f"{stamp(newest.unix_s)}" + (f", {len(last)} kills in a day" if len(last) > 1 else ""),
        evidence="; ".join(f"{stamp(k.unix_s)} {k.by}: {k.process}: {k.why}" for k in last[-3:]),
        remedy="lower gpu_memory_utilization in the recipe, or end what else holds memory, then "
        f"{deploy_command(plan, 'serve')} -y",
    )


def armable(
    node: str, now: HostSettings, guard_mib: int, available: int | None
) -> Iterator[Violation]:
    """What is in the way of a memory guard on a node. `available`: bytes of MemAvailable while the
    engine serves; None where it does not, and nothing can be told.
    """
    if now.guard.program is None:
        yield violation(
            "guard-missing",
            node,
            f"{node} has no earlyoom, which is the memory guard",
            evidence="no program earlyoom on PATH",
            remedy=f"on {node}: {INSTALL}",
        )
    if available is not None and available < APART * guard_mib * MIB:
        fits = int(available / MIB / APART)
        yield violation(
            "guard-tight",
            node,
            f"the engine of {node} serves with {gib(available)} available: a guard at "
            f"{guard_mib} MiB would end it in use",
            evidence=f"MemAvailable is less than {APART:g} times {guard_mib} MiB",
            remedy="lower gpu_memory_utilization in the recipe and serve again"
            + (f", or take --data memory_guard_mib={fits}" if fits >= 64 else ""),
        )


# A reboot that nobody asked for, and a host that does it again and again (D6).

# So many ends in a day that nobody asked for are hardware, firmware or a driver.
LOOP = 3
# A reboot of last week is no news.
NEWS_S = 7 * DAY_S
_OURS = frozenset({"reboot", "kernel"})
# What names a cause, of the kernel and of NVIDIA's driver, which says it before it hangs the host
# (NVIDIA/open-gpu-kernel-modules issue 1358, NVIDIA/dgx-spark-playbooks issue 97).
_TELLING = re.compile(
    r"Kernel panic|BUG:|Oops|soft lockup|hard LOCKUP|rcu.*stall|blocked for more than"
    r"|Out of memory|NV_ERR_NO_MEMORY|NVRM: Xid|Hardware Error|machine check|sysrq: Trigger"
    r"|watchdog did not stop|I/O error|thermal"
)


def unasked(
    boots: tuple[Boot, ...], changes: tuple[ChangeSummary, ...]
) -> list[tuple[Boot, Boot | None]]:
    """The boots whose end nobody asked for, each with the next one (None: not in the journal).

    rigbook's own reboots are known by its journal, also where their last lines were lost.
    """
    ours = {change.boot_id.replace("-", "") for change in changes if change.deploy in _OURS}
    following = [*boots[1:], None][: len(boots)]
    return [
        (boot, after)
        for boot, after in zip(boots, following, strict=True)
        if boot.asked_for is False and boot.boot_id not in ours
    ]


def last_words(boot: Boot) -> str:
    """The lines that name a cause, the kernel's own record first; else the journal's last one."""
    for lines in (boot.pstore, boot.tail):
        telling = [line for line in lines if _TELLING.search(line)]
        if telling:
            return " | ".join(dict.fromkeys(telling[-3:]))
    if not boot.tail:
        return "none were kept"
    return f"none that names a cause; the journal ends with: {boot.tail[-1]}"


def boot_findings(plan: Plan, observed: Observed, hosts: Hosts) -> list[Violation]:
    """A warning for a reboot that nobody asked for, in its place one for a loop of them."""
    found: list[Violation] = []
    for node, snapshot in answering_nodes(plan, observed):
        facts = hosts[node.name]
        if isinstance(facts, HostFacts) and isinstance(facts.boots, tuple):
            found += _of(plan, node.name, snapshot, facts.boots)
    return found


def _of(
    plan: Plan, node: str, snapshot: NodeSnapshot, boots: tuple[Boot, ...]
) -> Iterator[Violation]:
    now = snapshot.identity.clock_unix_s
    changes = () if isinstance(snapshot.journal, Unreadable) else snapshot.journal.changes
    ends = [(b, n) for b, n in unasked(boots, changes) if 0 <= now - b.last_unix_s < NEWS_S]
    if not ends:
        return
    boot, after = ends[-1]
    evidence = "; ".join(f"{stamp(b.last_unix_s)}: {last_words(b)}" for b, _ in ends[-LOOP:])
    today = [b for b, _ in ends if now - b.last_unix_s < DAY_S]
    if len(today) >= LOOP:
        yield violation(
            "reboot-loop",
            node,
            f"{node} went down {len(today)} times in a day, and nobody asked for it",
            evidence=evidence,
            remedy=f"inspect its hardware, power and cooling; on {node}: sudo journalctl -b -1 -k "
            f"-e; until then take the load off: {deploy_command(plan, 'stop')} -y",
        )
    elif after is not None and after.asked_for is None:
        yield violation(
            "rebooted-unasked",
            node,
            f"{node} rebooted at {stamp(after.first_unix_s)}, which nobody asked for",
            evidence=f"its last line is of {stamp(boot.last_unix_s)}; last words: "
            f"{last_words(boot)}",
            remedy=f"on {node}: sudo journalctl -b -1 -e shows what came before; "
            f"{deploy_command(plan, 'host')} -y keeps more of it the next time",
        )


def boots_lines(hosts: Hosts) -> list[str]:
    """A line for each node whose former boots nobody can tell of."""
    return [
        f"{name}: its journal has no former boot, so how they ended is unknown; deploys/host.py "
        "has it kept"
        for name, facts in hosts.items()
        if isinstance(facts, HostFacts) and isinstance(facts.boots, tuple) and len(facts.boots) < 2
    ]
