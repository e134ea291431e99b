"""What firmware.py sets on each node, what a person has to do there, and how both are told."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.common.boot_needs import load_lists
from deploys.common.load_and_gate import dry_run, once_a_run
from deploys.common.procedure import Procedure
from deploys.common.snapshot_view import files_in, units_in, wider
from deploys.procedures.host.firmware_report import Machine, report, save_wake_records
from facts.hardware import hardware_of, with_hardware
from facts.observe import observe
from gates.core.check import Gate, Observed
from gates.firmware.checklist import BARE_METAL, Lists, card_there, cards_of, own_board, states
from gates.gate_sets import CHANGING
from operations.change.apply import Steps, texts_of
from operations.change.node_call import StepFailed
from operations.change.steps import folder_steps
from operations.engine.engine import file_steps
from operations.host.machine import folders_of, sleep_steps, wol_steps
from operations.rollback.revert import undo_only
from schema.core.errors import SpecError, unknown
from schema.desired.plan import Document, Plan
from schema.inputs.runbook_data import FirmwareData
from schema.machine import attestation
from schema.machine.checklist import Checklist, Item, checklist_for
from schema.observed.files import FileState
from schema.observed.hardware import AttestationFile, HardwareFacts, MachineSnapshot, Wol
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.render.wake_on_lan_files import paths, persistence, unit_name

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
        ours = [path for nic in facts.nics for path in paths(nic)]
        ours += [attestation.path_of(item) for item in want.attest]
        folders = [path.rpartition("/")[0] for path in ours]
        units = (unit_name(nic) for nic in facts.nics)
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
        report(machine)
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
    return attestation.document(item, want.by, want.now, board)


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
