"""What firmware.py sets on each node, what a person has to do there, and how both are told."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.plans.engine import load_lists
from deploys.plans.rig import (
    Procedure,
    dry_run,
    files_in,
    inventory_name,
    once_a_run,
    units_in,
    wider,
)
from facts.looks import hardware_of, with_hardware
from facts.node import observe
from gates.core import Gate, Observed
from gates.firmware import (
    BARE_METAL,
    ItemState,
    Lists,
    card_there,
    cards_of,
    connected,
    own_board,
    states,
)
from gates.gate_sets import CHANGING
from operations.apply import Steps, folder_steps, texts_of
from operations.engine import file_steps
from operations.host import folders_of, sleep_steps, wol_steps
from operations.rollback import undo_only
from operations.run import StepFailed
from schema import hardware
from schema.core import SpecError, unknown
from schema.hardware import (
    AttestationFile,
    Checklist,
    HardwareFacts,
    Item,
    MachineSnapshot,
    Nic,
    Wol,
    checklist_for,
    lan_network,
)
from schema.host import MachineRecord, Machines, read_machines, write_machines
from schema.keys import FirmwareData
from schema.plan import Document, Plan
from schema.render_host import WolPersistence, persistence, wake_on_lan_files_paths, wake_unit_name
from schema.snapshot import FileState, NodeSnapshot, Unreadable

# What firmware.py tells a person of each machine, and what it keeps for wake.py.


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


def firmware_report(machine: Machine) -> None:
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


UNDO_TIMEOUT_S = 120


@dataclass(frozen=True)
class Want:
    """What a run is asked for: the nodes, the card by name (None: the LAN's), what is attested."""

    plan: Plan
    lists: Lists
    nodes: frozenset[str]
    nic: str | None
    attest: tuple[str, ...]
    by: str
    now: float


@dataclass(frozen=True)
class FirmwareWork:
    """The steps of one run, by node."""

    machines: Mapping[str, Machine]
    steps: Mapping[str, Steps]
    before: Mapping[str, Mapping[str, str | None]]
    members: frozenset[str]


revert = undo_only("cards, sleep and attestations are as they were", UNDO_TIMEOUT_S)


@once_a_run
def parse_request(rig: Procedure) -> Want:
    """What --data asks for; DeployError for a node that is none, and for an unclear attestation."""
    plan, data = rig.plan, rig.data(FirmwareData)
    nodes = frozenset(rig.asked_nodes(data.only))
    if data.attest and len(nodes) > 1:
        raise DeployError(
            "--data attest: a person looks at one board; add --data only=NODE, one of "
            + ", ".join(sorted(nodes))
        )
    return Want(plan, load_lists(), nodes, data.nic, data.attest, data.by or "", time.time())


def gates(want: Want) -> tuple[Gate, ...]:
    """The gates of this run."""
    return (*CHANGING, card_there(want.nic, want.nodes))


def inspect(want: Want) -> Observed:
    """The rig with each node's hardware, and the files that this run may write there."""
    found = hardware_of(state, want.plan)
    plan = want.plan
    for name, facts in found.items():
        if isinstance(facts, Unreadable) or isinstance(facts.nics, Unreadable):
            continue
        ours = [path for nic in facts.nics for path in wake_on_lan_files_paths(nic)]
        ours += [hardware.path_of(item) for item in want.attest]
        folders = [path.rpartition("/")[0] for path in ours]
        units = (wake_unit_name(nic) for nic in facts.nics)
        plan = wider(plan, (name,), (*ours, *folders), units)
    return with_hardware(observe(state, plan), found)


@once_a_run
def plan(rig: Procedure, want: Want) -> FirmwareWork:
    """The work of this run, planned and told once; all hosts get the same object."""
    machines = {
        name: machine_of(want, name, snapshot)
        for name, snapshot in rig.snapshots.items()
        if name in want.nodes and isinstance(snapshot, MachineSnapshot)
    }
    files = {name: files_in(snapshot) for name, snapshot in rig.snapshots.items()}
    steps: dict[str, Steps] = {name: [] for name in rig.snapshots}
    for name, machine in machines.items():
        steps[name] = steps_of(machine, files[name], _enabled(rig.snapshots[name]))
        firmware_report(machine)
    if not dry_run():
        save_wake_records(want.plan, machines, want.now)
    return FirmwareWork(
        machines=machines,
        steps=steps,
        before={name: texts_of(found) for name, found in files.items()},
        members=frozenset(name for name, todo in steps.items() if todo),
    )


def machine_of(want: Want, name: str, snapshot: MachineSnapshot) -> Machine:
    """One node with its list, and with what this run attests; DeployError where it cannot."""
    facts = snapshot.hardware
    if isinstance(facts, Unreadable):
        raise DeployError(f"{name}: the hardware cannot be read: {facts.unreadable}")
    node = want.plan.rig.node(name)
    try:
        checklist = checklist_for(own_board(facts), want.lists)
    except SpecError as error:
        raise DeployError(str(error)) from None
    cards = cards_of(facts, node, want.nic)
    documents = tuple(_attested(want, name, facts, checklist, item) for item in want.attest)
    rows = states(checklist, _after(facts, documents), cards, want.now)
    ways = {nic.name: persistence(nic) for nic in cards}
    return Machine(name, facts, checklist, cards, ways, rows, documents)


def _attested(
    want: Want, name: str, facts: HardwareFacts, checklist: Checklist, wanted: str
) -> Document:
    items: dict[str, Item] = {item.id: item for item in checklist.items}
    if wanted not in items:
        raise DeployError(f"--data attest: checklist {checklist.name}: "
                          + unknown("item", wanted, items))  # fmt: skip
    item = items[wanted]
    if item.valid_days is None:
        raise DeployError(f"--data attest={wanted}: Linux reads this one; it is not attested")
    board = own_board(facts)
    if isinstance(facts.virtual, Unreadable):
        raise DeployError(
            f"--data attest={wanted}: whether {name} is a board of its own is unknown: "
            f"{facts.virtual.unreadable}"
        )
    if facts.virtual != BARE_METAL:
        raise DeployError(
            f"--data attest={wanted}: {name} is no board but {facts.virtual}; attest its machine"
        )
    if board is None or not board.bios_version:
        raise DeployError(
            f"--data attest={wanted}: {name} does not say its BIOS version, and an attestation "
            f"holds for one BIOS; on {name}: sudo dmidecode -t bios"
        )
    return hardware.attestation_document(item, want.by, want.now, board)


def _after(facts: HardwareFacts, documents: Sequence[Document]) -> HardwareFacts:
    """The facts as they are once the documents are there."""
    if not documents or isinstance(facts.attestations, Unreadable):
        return facts
    new = {d.path.rpartition("/")[2]: json.loads(d.content) for d in documents}
    kept = tuple(row for row in facts.attestations if row.file not in new)
    rows = tuple(AttestationFile(file=file, said=said) for file, said in new.items())
    return facts.model_copy(update={"attestations": (*kept, *rows)})


def steps_of(machine: Machine, files: Mapping[str, FileState], enabled: frozenset[str]) -> Steps:
    """What this run does on one node; a card that cannot wake is left alone."""
    probes = {item.probe for item in machine.checklist.items}
    steps: Steps = []
    for nic in machine.cards if "wol" in probes else ():
        way = machine.ways[nic.name]
        if isinstance(nic.wol, Wol) and nic.wol.able and way.refused is None:
            steps += wol_steps(nic, way, files, enabled)
    if "sleep_targets" in probes and not isinstance(machine.facts.sleep, Unreadable):
        steps += sleep_steps(machine.facts.sleep)
    if machine.attested:
        steps += folder_steps(folders_of(machine.attested), files, "0700")
        steps += file_steps(machine.attested, files)
    return steps


def _enabled(snapshot: NodeSnapshot) -> frozenset[str]:
    return frozenset(n for n, unit in units_in(snapshot).items() if unit.enabled == "enabled")


def verify(want: Want, work: FirmwareWork) -> str:
    """A line about each machine, read again; StepFailed says what is not as it was set."""
    found = hardware_of(state, want.plan)
    said = []
    for name in sorted(work.members):
        facts = found[name]
        if isinstance(facts, Unreadable):
            raise StepFailed(f"{name}: cannot be asked: {facts.unreadable}")
        said.append(f"{name}: {_proven(work, name, facts, want)}")
    return "; ".join(said)


def _proven(work: FirmwareWork, name: str, facts: HardwareFacts, want: Want) -> str:
    nics = {} if isinstance(facts.nics, Unreadable) else {nic.name: nic for nic in facts.nics}
    words = []
    for step in work.steps[name]:
        if step["op"] == "wol":
            nic = nics.get(str(step["nic"]))
            if nic is None or not (isinstance(nic.wol, Wol) and nic.wol.armed):
                card = shlex.quote(str(step["nic"]))
                raise StepFailed(f"{name}: {card} is not armed: ethtool {card}")
            words.append(f"{nic.name} wakes by a magic packet")
    machine = work.machines[name]
    if any(step["op"] == "link" for step in work.steps[name]):
        targets = {} if isinstance(facts.sleep, Unreadable) else facts.sleep
        if not targets or any(state != "masked" for state in targets.values()):
            raise StepFailed(
                f"{name}: the sleep targets are not masked: systemctl status sleep.target"
            )
        words.append("it does not go to sleep")
    if machine.attested:
        rows = states(machine.checklist, facts, machine.cards, want.now)
        bad = [row for row in rows if row.item.id in want.attest and row.state != "ok"]
        if bad:
            raise StepFailed(f"{name}: {bad[0].item.id}: {bad[0].said}")
        words.append(f"{', '.join(want.attest)} attested by {want.by}")
    return ", ".join(words) or "its files are written"
