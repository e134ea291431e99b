"""Which backups go to which node, or come back from it: `to=NODE`, `take=ID`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from deploys.procedures.transfer.route import planned_route, wanted
from deploys.procedures.venv.backup import backups_of_all, copies_of_all, newest_of, nothing_to_copy
from gates.transfer.copies import copy_gates
from gates.transfer.route import TransferRequest
from operations.transfer.copies import Move
from operations.transfer.transfer import Transfer
from schema.inputs.places import kind_of
from schema.inputs.runbook_data import BackupData
from schema.observed.backup import OtherRow

# giver, taker, the backup, the name of the host that it is of
Asked = tuple[str, str, str, str]


@once_a_run
def asked(rig: Procedure) -> tuple[Asked, ...]:
    """The backups that go from node to node in this run; DeployError where they cannot."""
    data = rig.data(BackupData)
    if is_node(data.to):
        return tuple(_to(rig, str(data.to)))
    if data.take and not (data.source and not is_node(data.source)):
        return tuple(_back(rig, data.take, data.source))
    return ()


def is_node(place: str | None) -> bool:
    """Whether a place of copies is a node of the rig."""
    return place is not None and kind_of(place) == "node"


def _to(rig: Procedure, to: str) -> Iterator[Asked]:
    rig.asked_nodes(to, "to")
    givers = [node.name for node in rig.plan.rig.nodes if node.name != to]
    if not givers:
        raise DeployError(f"--data to={to}: it is the only node; name a folder of another disk")
    found = {name: row for name in givers if (row := newest_of(rig, name))}
    if not found:
        raise nothing_to_copy(rig, givers[0])
    known = copies_of_all(rig)
    for name, row in found.items():
        yield name, to, row.id, known[name].host


def _back(rig: Procedure, backup: str, source: str | None) -> Iterator[Asked]:
    names = rig.asked_nodes(source, "from")
    known = copies_of_all(rig)
    found = {
        (name, row.host): row
        for name in names
        for row in known[name].others
        if row.backup == backup and not row.problem
    }
    if source is not None and not found:
        kept = ", ".join(row.backup for row in known[source].others[:5]) or "none"
        raise DeployError(f"{source} keeps no whole copy of {backup}; it keeps: {kept}")
    here = backups_of_all(rig)
    if any(row.id == backup for seen in here.values() for row in seen.backups):
        return
    moves = [
        (giver, name, backup, known[name].host)
        for name in rig.asked_nodes(None)
        if (giver := _giver(found, known[name].host, name))
    ]
    if found and not moves:
        giver, owner = next(iter(found))
        raise DeployError(
            f"{giver} keeps {backup} for a host called {owner}, and no node of the rig calls "
            f"itself so; on the node that it is of: sudo hostnamectl set-hostname "
            f"{shlex.quote(owner)}"
        )
    yield from moves


def _giver(found: Mapping[tuple[str, str], OtherRow], host: str, node: str) -> str | None:
    return next((name for name, of in found if of == host and name != node), None)


def gate(rig: Procedure) -> None:
    """Whether: the ways over the fabric, nobody else at work; DeployError when a finding blocks."""
    data = rig.data(BackupData)
    pairs: dict[str, list[str]] = {}
    for giver, taker, _, _ in asked(rig):
        pairs.setdefault(giver, []).append(taker)
    want = wanted(rig, lambda plan: TransferRequest(None, data.port, data.waive))
    rig.gate(copy_gates(pairs, data.port, data.waive), want.plan)


@once_a_run
def moves(rig: Procedure) -> list[Move]:
    """What goes where, in this order; the same objects for every host."""
    keeps = is_node(rig.data(BackupData).to)
    return [
        Move(Transfer(rig.run, "tree", giver, (taker,), planned_route(rig)), backup, owner, keeps)
        for giver, taker, backup, owner in asked(rig)
    ]
