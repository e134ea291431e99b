"""Backups that are gone from their node: where copies of them were seen, and their way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from pyinfra import host, logger
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import inventory_name, once_a_run
from deploys.common.procedure import Procedure
from deploys.procedures.transfer import away
from deploys.procedures.transfer.route import planned_route
from deploys.procedures.venv.backup import MIB, backups_of_all, copies_of_all
from operations.change.node_call import StepFailed
from operations.sealed import backup as sealed
from operations.sealed import copy, places
from operations.transfer.copies import Move, move
from operations.transfer.transfer import Transfer
from operations.venv import backup
from schema.inputs.runbook_data import OfABackupData
from schema.observed.backup import BackupRow, Copies, CopyOf


@dataclass(frozen=True)
class Copy:
    """A copy of a node's backup that was seen in `place`: on a disk that is mounted there, with the
    node `giver` for the host called `owner`, or `away`, outside the rig.
    """

    row: BackupRow
    place: str
    bytes: int
    owner: str = ""
    giver: str = ""
    away: sealed.Back | None = None


@dataclass(frozen=True)
class Returning:
    """The copies that come back before a restore, by node."""

    copies: Mapping[str, Copy] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()

    @property
    def taken(self) -> dict[str, str]:
        """The backup of each node that takes it from a disk there."""
        return {name: one.row.id for name, one in self.copies.items()
                if not one.giver and one.away is None}  # fmt: skip

    @property
    def opened(self) -> dict[str, sealed.Back]:
        """What comes from outside the rig, by node."""
        return {name: one.away for name, one in self.copies.items() if one.away is not None}


def in_rig(known: Mapping[str, Copies], node: str) -> Iterator[Copy]:
    """The copies of a node's backups that lie in the rig: on its own disks, then with others."""
    own = known[node]
    for here in own.noted:
        if here.is_here:
            yield Copy(_row(here), here.place, here.bytes)
    for name, seen in known.items():
        for row in seen.others if name != node else ():
            if row.host == own.host and not row.problem:
                yield Copy(_row(row), row.place, row.bytes, own.host, name)


def _row(seen: CopyOf) -> BackupRow:
    return BackupRow(id=seen.backup, usable=True, problem=None, verified_unix_s=None,
                     tree=seen.tree, created_unix_s=seen.created_unix_s,
                     image=seen.image)  # fmt: skip


def copies_for(rig: Procedure, node: str) -> list[Copy]:
    """The copies that were seen of backups that are gone from a node, the nearest first;
    DeployError when the place of --data from= cannot be looked at.
    """
    here = {row.id for row in backups_of_all(rig)[node].backups}
    seen = (*in_rig(copies_of_all(rig), node), *_outside(rig).get(node, ()))
    return [one for one in seen if one.row.id not in here]


@once_a_run
def _outside(rig: Procedure) -> dict[str, list[Copy]]:
    """By node, the copies in the place of --data from=; the manifest of each is opened."""
    data = rig.data(OfABackupData)
    if data.source is None:
        return {}
    identity = away.identity_of(data)
    try:
        with closing(places.opened(data.source)) as there:
            found = partial(_sealed, there, data.source, identity)
            return {name: list(found(seen.host)) for name, seen in copies_of_all(rig).items()}
    except StepFailed as error:
        raise DeployError(str(error)) from None


def _sealed(there: places.Place, place: str, identity: str, host: str) -> Iterator[Copy]:
    for backup_id in there.names(copy.folder_of(host)):
        folder = copy.folder_of(host, backup_id)
        where = f"{place}/{folder}"
        try:
            document = copy.document_of(there, folder, identity)
            if document is None:
                raise ValueError("its manifest is missing")
            said, size = document["manifest"], sum(row["bytes"] for row in document["files"])
            image = said.get("image") and {key: said["image"][key] for key in ("id", "content")}
            about = CopyOf(backup=backup_id, place=where, tree=said["tree"], bytes=size,
                           created_unix_s=said["created_unix_s"], image=image)  # fmt: skip
        except (StepFailed, KeyError, TypeError, AttributeError, ValueError) as error:
            logger.warning(f"    {where}: cannot be used: {' '.join(str(error).split())}")
            continue
        yield Copy(_row(about), where, size, away=sealed.Back(place, identity, backup_id, folder))


def elsewhere(rig: Procedure, node: str, backup_id: str | None) -> str:
    """The end of a refusal: where the node noted copies of a backup (None: of any) that nobody sees
    from here, and the commands that look further."""
    where = [f"{row.backup} in {row.place}" for row in copies_of_all(rig)[node].noted
             if not row.is_here and backup_id in (None, row.backup)]  # fmt: skip
    noted = f"; noted, and not looked at: {', '.join(where)}" if where else ""
    listed = f"pyinfra {inventory_name()} deploys/backup.py -y --data"
    return (
        f"{noted}; see: {listed} list=true; a copy outside the rig: --data from=PLACE --data "
        f"identity=FILE; one on a disk that the node has not noted: {listed} take=ID --data "
        "from=FOLDER"
    )


def returning(rig: Procedure, copies: Mapping[str, Copy]) -> Returning:
    """How copies come back to their nodes, each told in a line."""
    moves = tuple(
        Move(Transfer(rig.run, "tree", one.giver, (name,), planned_route(rig)), one.row.id,
             one.owner, False)
        for name, one in copies.items() if one.giver
    )  # fmt: skip
    ways = {move.taker: f"{move.giver}, {move.transfer.route.words}" for move in moves}
    for name, one in copies.items():
        where = ways.get(name, one.place) + (", encrypted" if one.away else "")
        size = f"{one.bytes / MIB:.0f} MiB"
        logger.info(f"    {one.row.id} is gone from {name}: bring it back from {where}, {size}")
    return Returning(copies, moves)


def bring(rig: Procedure, back: Returning) -> None:
    """Brings all of them and verifies them; called in deploy code. Where one does not come the run
    ends on all nodes.
    """
    if back.moves:
        move(name="Bring it back from another node", run=rig.run, moves=back.moves)
    if back.taken:
        id_ = back.taken.get(host.name)
        backup.take(name="Bring it back from its copy", request={"backup": id_} if id_ else {},
                    run=rig.run, members=back.taken)  # fmt: skip
    if back.opened:
        sealed.bring(name="Bring it back from its encrypted copy", back=back.opened.get(host.name),
                     run=rig.run, members=back.opened)  # fmt: skip
