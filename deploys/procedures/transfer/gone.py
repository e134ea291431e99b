"""Backups that are gone from their node: where copies of them were seen, and their way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyinfra import host, logger

from deploys.common.load_and_gate import inventory_name
from deploys.common.procedure import Procedure
from deploys.procedures.transfer.route import planned_route
from deploys.procedures.venv.backup import MIB, backups_of_all, copies_of_all
from operations.transfer.copies import Move, move
from operations.transfer.transfer import Transfer
from operations.venv import backup
from schema.observed.backup import BackupRow, Copies, CopyOf


@dataclass(frozen=True)
class Copy:
    """A copy of a node's backup that was seen in `place`: on a disk that is mounted there, or with
    the node `giver` for the host called `owner`.
    """

    row: BackupRow
    place: str
    bytes: int
    owner: str = ""
    giver: str = ""


@dataclass(frozen=True)
class Returning:
    """The copies that come back before a restore, by node."""

    copies: Mapping[str, Copy] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()

    @property
    def taken(self) -> dict[str, str]:
        """The backup of each node that takes it from a disk there."""
        return {name: one.row.id for name, one in self.copies.items() if not one.giver}


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
                     tree=seen.tree, created_unix_s=seen.created_unix_s)  # fmt: skip


def copies_for(rig: Procedure, node: str) -> list[Copy]:
    """The copies that were seen of backups that are gone from a node, the nearest first."""
    here = {row.id for row in backups_of_all(rig)[node].backups}
    return [one for one in in_rig(copies_of_all(rig), node) if one.row.id not in here]


def elsewhere(rig: Procedure, node: str, backup_id: str | None) -> str:
    """The end of a refusal: where the node noted copies of a backup (None: of any) that nobody sees
    from here, and the commands that look further."""
    where = [f"{row.backup} in {row.place}" for row in copies_of_all(rig)[node].noted
             if not row.is_here and backup_id in (None, row.backup)]  # fmt: skip
    noted = f"; noted, and not looked at: {', '.join(where)}" if where else ""
    listed = f"pyinfra {inventory_name()} deploys/backup.py -y --data"
    return (
        f"{noted}; see: {listed} list=true; a copy on a disk that the node has not noted: {listed} "
        "take=ID --data from=FOLDER"
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
        where, size = ways.get(name, one.place), f"{one.bytes / MIB:.0f} MiB"
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
