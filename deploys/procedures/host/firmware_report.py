"""What firmware.py tells a person of each machine, and what it keeps for wake.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra import logger

from deploys.common.load_and_gate import inventory_name
from gates.firmware.checklist import BARE_METAL, ItemState, own_board
from gates.firmware.probes import connected
from schema.core.errors import SpecError
from schema.desired.plan import Document, Plan
from schema.machine.checklist import Checklist
from schema.machine.wake_record import MachineRecord, Machines, read_machines, write_machines
from schema.observed.hardware import HardwareFacts, Nic, Wol, lan_network
from schema.observed.snapshot import Unreadable
from schema.render.wake_on_lan_files import WolPersistence


@dataclass(frozen=True)
class Machine:
    """One node: its hardware, list and cards, and how each item stands after this run."""

    name: str
    facts: HardwareFacts
    checklist: Checklist
    cards: tuple[Nic, ...]
    ways: Mapping[str, WolPersistence]
    rows: tuple[ItemState, ...]
    attested: tuple[Document, ...]


def report(machine: Machine) -> None:
    """The machine, each item, and what a person must do, as a numbered list with how and why."""
    facts, name = machine.facts, machine.name
    board = own_board(facts)
    bios = f", BIOS {board.bios_version or 'unknown'}" if board else ""
    logger.info(f"    {name}: {board.title if board else 'no SMBIOS'}{bios}; "
                f"checklist {machine.checklist.name}")  # fmt: skip
    for nic in machine.cards:
        logger.info(f"    {name}: {card_line(nic, machine.ways[nic.name])}")
    for row in machine.rows:
        if row.state == "ok":
            logger.info(f"    {name}: {row.item.id}: {row.said}")
    if isinstance(facts.virtual, str) and facts.virtual != BARE_METAL:
        logger.info(f"    {name}: {facts.virtual}: its firmware is another machine's")
        return
    todo = [row for row in machine.rows if row.state != "ok" and not can_be_set_by_us(machine, row)]
    if todo:
        logger.warning(f"    {name}: for a person at the board, {len(todo)} to do:")
    for number, row in enumerate(todo, 1):
        logger.warning(
            f"    {number}. {row.item.id}: {row.item.expected} ({row.state}: {row.said})"
        )
        for line in row.item.how:
            logger.warning(f"       how: {line}")
        logger.warning(f"       why: {row.item.why}")
    names = ",".join(row.item.id for row in todo if row.item.valid_days is not None)
    if names:
        logger.warning(
            f"    then: pyinfra {inventory_name()} deploys/firmware.py -y --data attest={names} "
            f"--data by=YOURNAME --data only={name}"
        )


def can_be_set_by_us(machine: Machine, row: ItemState) -> bool:
    """True for what this deploy sets by itself, where the machine can do it."""
    if row.state != "wrong" or row.item.probe not in ("wol", "sleep_targets"):
        return False
    return row.item.probe == "sleep_targets" or all(
        isinstance(nic.wol, Wol) and nic.wol.able and machine.ways[nic.name].refused is None
        for nic in machine.cards
    )


def card_line(nic: Nic, way: WolPersistence) -> str:
    """One card for a person: whether it can wake, whether it would, who arms it at a boot."""
    head = f"{nic.name} {nic.permanent} ({nic.manager})"
    if isinstance(nic.wol, Unreadable):
        return f"{head}: Wake-on-LAN unknown: {nic.wol.unreadable}"
    if not nic.wol.able:
        said = f"supports {nic.wol.supports}" if nic.wol.supports else "names no Wake-on-LAN"
        return f"{head}: cannot wake by a magic packet (ethtool {said}); left alone"
    if way.refused:
        return f"{head}: not armed for the next boot: {way.refused}"
    return f"{head}: Wake-on-LAN is {nic.wol.set}; at each boot by {way.reader}"


def save_wake_records(plan: Plan, machines: Mapping[str, Machine], now: float) -> None:
    """Records for wake.py what is known of the machines, in the operator's own folder."""
    rig = plan.rig
    try:
        known = dict(read_machines(rig.name).nodes)
    except SpecError as error:
        logger.warning(f"    {error}")
        known = {}
    for name, machine in machines.items():
        network = lan_network(machine.facts, str(rig.node(name).lan_address))
        if not machine.cards or network is None:
            continue
        nic = machine.cards[0]
        board = own_board(machine.facts)
        letters = nic.wol.set if isinstance(nic.wol, Wol) else None
        able = isinstance(nic.wol, Wol) and nic.wol.able
        known[name] = MachineRecord(
            nic=nic.name,
            mac=nic.permanent,
            network=network,
            # what this run is about to set
            wol="g" if able else letters or "unknown",
            able=able,
            board=board.title if board else "unknown",
            display=bool(connected(machine.facts)),
            open=tuple(row.item.id for row in machine.rows if row.state == "open"),
            seen_unix_s=int(now),
        )
    write_machines(rig.name, Machines(nodes=known))
