"""Copies that leave the rig: to the operator's machine or an sftp server, and back."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once_a_run
from deploys.common.procedure import Procedure
from deploys.procedures.venv.backup import (
    backups_of_all,
    copies_of_all,
    newest_of,
    nothing_to_copy,
)
from operations.change.node_call import StepFailed
from operations.sealed import age, copy, places
from operations.sealed.backup import Back
from schema.inputs.places import kind_of
from schema.inputs.runbook_data import BackupData, OfABackupData
from schema.observed.backup import BackupRow


@dataclass(frozen=True)
class Away:
    """A backup of a host that leaves the rig, sealed for a recipient."""

    place: str
    recipient: str
    row: BackupRow


def is_away(place: str | None) -> bool:
    """Whether a place of copies is outside the rig."""
    return place is not None and kind_of(place) == "away"


def plan_away(rig: Procedure, name: str) -> Away:
    """What leaves from a host; DeployError where it cannot."""
    data = rig.data(BackupData)
    if data.recipient is None:
        raise DeployError(
            "--data recipient: is missing; what leaves the rig is encrypted; allowed: "
            "--data recipient=age1…; make one, and keep its file: age-keygen -o FILE"
        )
    _need_age()
    row = newest_of(rig, name)
    if row is None:
        raise nothing_to_copy(rig, name)
    return Away(str(data.to), data.recipient, row)


def plan_back(rig: Procedure, name: str) -> Back | None:
    """What comes back to a host; None: nothing does. DeployError where it is nowhere."""
    data = rig.data(BackupData)
    identity, folder = identity_of(data), _found(rig).get(name)
    return Back(str(data.source), identity, str(data.take), folder) if folder else None


def identity_of(data: BackupData | OfABackupData) -> str:
    """The file that opens what comes from outside; DeployError where nothing could be opened."""
    if data.identity is None:
        raise DeployError("--data identity: is missing; allowed: --data identity=FILE, age's own")
    _need_age()
    return data.identity


def _need_age() -> None:
    if age.missing():
        raise DeployError(age.MISSING)


@once_a_run
def _found(rig: Procedure) -> dict[str, str]:
    """By node, the folder of the copy that is to come back to it."""
    data = rig.data(BackupData)
    backup, here = str(data.take), backups_of_all(rig)
    if any(row.id == backup for seen in here.values() for row in seen.backups):
        return {}
    folders = {n: copy.folder_of(seen.host, backup) for n, seen in copies_of_all(rig).items()}
    try:
        with closing(places.opened(str(data.source))) as place:
            found = {n: folder for n, folder in folders.items()
                     if place.read(f"{folder}/{copy.SUMS}") is not None}  # fmt: skip
    except StepFailed as error:
        raise DeployError(str(error)) from None
    if not found:
        raise DeployError(f"no copy in {data.source}: {', '.join(folders.values())}")
    return found
