"""The keys that each runbook takes with --data, beside those of every runbook: closed sets.

`...Keys` are those that it takes on a Kubernetes rig as well (cluster_runbook_data.py).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from schema.core.base import Frozen
from schema.core.host_keys import key
from schema.core.strings import group_name
from schema.core.types import (
    AbsolutePath,
    Argument,
    Device,
    HostName,
    Mac,
    Name,
    Names,
    Paths,
    Release,
    Url,
    as_text,
    as_version,
    listed,
)
from schema.inputs.host_data import HostData, LeasedData
from schema.inputs.places import CopyPlace, HubRepo
from schema.observed.artifact import commit_or_pr
from schema.recipe.venv import Version
from schema.render.drop_in import (
    DROP_IN_NAME,
    Argv,
    Assignment,
    DropIn,
    Restart,
    UnitName,
    listed_argv,
)

GATED = frozenset({"waive", "reason", "deep", "former_rig", "lease"})


Commit = Annotated[str, BeforeValidator(as_text), AfterValidator(commit_or_pr)]
GroupName = Annotated[str, AfterValidator(group_name)]
CommandLine = Annotated[Argv | None, BeforeValidator(listed_argv)]


class AdoptData(HostData):
    """adopt: takes any inventory with hosts; what an engine needs may be missing in it."""

    unused = frozenset({"lease"})
    write: GroupName | None = key(
        None, "write inventory/NAME.py, group_data/NAME.py and the recipe NAME from what runs"
    )
    take: bool = key(False, "take the engine over, with the way back in the journal")
    port: int | None = key(None, "which engine, where a node runs several", ge=1, le=65535)


class ServeData(LeasedData):
    """serve."""

    unused = frozenset()


class StopData(LeasedData):
    """stop."""


class RestartData(LeasedData):
    """restart."""

    unused = frozenset()


class VerifyData(HostData):
    """verify."""

    unused = GATED
    measure: bool = key(False, "measure its rates against the recipe's baselines: minutes of load")


class DoctorKeys(Frozen):
    """doctor, on any rig."""

    as_json: bool = key(False, "print the findings for a machine", alias="json")
    bundle: AbsolutePath | None = key(
        None, "an archive to write here for a report: snapshots, findings, logs, versions"
    )


class DoctorData(DoctorKeys, HostData):
    """doctor."""

    unused = GATED - {"deep"}


class OverFabricData(HostData):
    """What moves something from node to node."""

    port: int = key(29680, "the giver's TCP port for this transfer", ge=1024, le=65535)


class OfABackupData(OverFabricData):
    """What restores a backup."""

    backup: Name | None = key(None, "the backup to restore; last: the newest verified one")


class RestoreData(OfABackupData):
    """restore."""

    backup: Name | None = key(None, "the backup to restore; none: the newest verified one")


class RollbackKeys(Frozen):
    """rollback, on any rig."""

    change: Name | None = key(None, "the change to undo; none: the last that is not blessed")
    overwrite: Paths = key((), "files whose later edits it may discard")
    despite: Name | None = key(None, "another open change that it may cut across")


class RollbackData(RollbackKeys, OfABackupData):
    """rollback."""


class RebootKeys(Frozen):
    """reboot, on any rig."""

    budget: int = key(1800, "until a node has booted", "seconds", ge=30, le=86400)


class RebootData(RebootKeys, HostData):
    """reboot."""

    only: HostName | None = key(None, "one node; none: all of them")


class KernelKeys(Frozen):
    """kernel, on any rig."""

    kernel: Release | None = key(None, "the release to pin; current: the one that runs")
    candidate: Release | None = key(None, "the release to boot once, prove and pin")
    budget: int = key(
        1800, "from a candidate's start until it must be blessed", "seconds", ge=30, le=86400
    )


class KernelData(KernelKeys, LeasedData):
    """kernel."""

    only: HostName | None = key(None, "one node; none: all of them")


class FirmwareData(HostData):
    """firmware."""

    attest: Names = key((), "items that a person has seen at the board; with by")
    by: Argument | None = key(None, "who saw them")
    only: HostName | None = key(None, "one node; none: all of them")
    nic: Device | None = key(None, "the card that wakes; none: the one that carries lan_address")

    def conflict(self) -> tuple[str, str] | None:
        if bool(self.attest) != bool(self.by):
            given, missing = ("attest", "by") if self.attest else ("by", "attest")
            return given, (
                f"{missing}: is missing; allowed: --data attest=ITEM,… together with --data by=NAME"
            )
        return super().conflict()


class WakeData(HostData):
    """wake."""

    unused = GATED
    only: HostName | None = key(None, "one node; none: all that do not answer")
    via: HostName | None = key(None, "the node that sends the packet; none: this machine")
    mac: Mac | None = key(None, "the card's address; none: as firmware recorded it")
    budget: int = key(1800, "until sshd answers", "seconds", ge=30, le=86400)
    power_cycle: bool = key(False, "cut the power first, by power_cycle_command")
    power_cycle_command: CommandLine = key(
        None, "a program on this machine that is called with off and on"
    )
    off_s: int = key(10, "between off and on", "seconds", ge=3, le=600)


class WatchKeys(Frozen):
    """watch, on any rig. The webhook's URL is its password: root's file on the node may hold it."""

    webhook_file: AbsolutePath | None = key(None, "a file of root's on the node with the URL")
    webhook: Url | None = key(None, "the URL that is told", repr=False)
    interval: int = key(60, "between two looks", "seconds", ge=10, le=86400)
    misses: int = key(3, "misses in a row until it is down", "looks", ge=1, le=1000)
    restart: bool = key(False, "restart an engine that is silent, 3 times in 6 hours at most")
    silent_s: int | None = key(
        None, "without a token until it is silent; none: as the recipe's longest prefill",
        "seconds", ge=30, le=86400,
    )  # fmt: skip
    textfile: AbsolutePath | None = key(None, "a file NAME.prom for Prometheus's node exporter")
    remove: bool = key(False, "end the watch")

    def unfit(self) -> tuple[str, str] | None:
        """What does not go together, as `conflict` says it."""
        if self.webhook and self.webhook_file:
            return "webhook", "webhook: and webhook_file; allowed: one of them"
        if self.textfile and not self.textfile.endswith(".prom"):
            return "textfile", "textfile: is another name; allowed: one that ends with .prom"
        return None


class WatchData(WatchKeys, HostData):
    """watch."""

    only: HostName | None = key(None, "the node that watches; none: the head")
    url: Url | None = key(None, "a gateway's base URL to ask; none: the head")
    model: Argument | None = key(None, "the name that must answer; none: the recipe's")

    def conflict(self) -> tuple[str, str] | None:
        if self.restart and (self.url or self.only):
            return "restart", "restart: with url or only; allowed: the head watches its own engine"
        return self.unfit() or super().conflict()


class UnitData(LeasedData):
    """unit: a systemd unit, and the directives of a drop-in for it."""

    unit: UnitName | None = key(None, "the service, with .service")
    drop_in: Name = key(DROP_IN_NAME, "the drop-in's name, without .conf")
    exec_start: CommandLine = key(None, "the command line as one text; none: the unit's own")
    restart: Restart | None = key(None, "Restart=; none: the unit's own")
    restart_sec: int | None = key(
        None, "between an end and the next start; none: the unit's own", "seconds", ge=0, le=86400
    )
    environment: Annotated[tuple[Assignment, ...], BeforeValidator(listed)] = key(
        (), "NAME=VALUE; no secrets"
    )
    only: HostName | None = key(None, "one node; none: each whose systemd knows the unit")
    remove: bool = key(False, "take the drop-in away")

    def override(self) -> DropIn:
        """What the keys of the drop-in say; empty where none was given."""
        return DropIn(
            exec_start=self.exec_start,
            restart=self.restart,
            restart_sec=self.restart_sec,
            environment=self.environment,
        )


class EngineFolderData(HostData):
    """What looks into an engine's installation."""

    venv: AbsolutePath | None = key(None, "the engine's folder; none: the recipe's")


class PatchData(LeasedData, EngineFolderData):
    """patch."""


class ProvenanceData(EngineFolderData):
    """provenance."""

    unused = GATED
    commits: Annotated[tuple[Commit, ...], BeforeValidator(listed)] = key(
        (), "commits or pull requests (#123) to look for"
    )
    as_json: bool = key(False, "print it for a machine", alias="json")


class BackupData(OverFabricData):
    """backup."""

    tree: AbsolutePath | None = key(None, "the folder; none: the recipe's venv")
    as_list: bool = key(False, "show what there is", alias="list")
    verify: bool | Name | None = key(None, "read this backup back; all: every one")
    prune: bool = key(False, "remove all but the newest")
    keep: int = key(3, "how many stay", "backups", ge=1, le=1000)
    displaced: bool = key(False, "remove what restores displaced as well")
    to: CopyPlace | None = key(
        None, "a copy of the newest one goes there: a node, or a folder of the node on another disk"
    )
    take: Name | None = key(None, "bring this backup, gone from the node, back from its copy")
    source: CopyPlace | None = key(
        None, "with take: what to= named; none: a node that keeps it, a disk noted", alias="from"
    )


class UpgradeData(LeasedData):
    """upgrade."""

    version: Annotated[Version | None, BeforeValidator(as_version)] = key(
        None, "the version to bring; none: the recipe's"
    )
    prune: bool = key(False, "remove the versions that nobody needs")


class FabricData(HostData):
    """fabric."""

    unused = GATED
    measure: bool | None = key(
        None, "the rates; none: where no engine runs; true: beside one as well; false: not"
    )
    port: int = key(29680, "the TCP port that a measurement uses", ge=1024, le=65535)


class TransferData(LeasedData, OverFabricData):
    """What moves an image or weights from node to node."""

    source: HostName | None = key(None, "the node that gives; none: a whole one", alias="from")


class ImageData(TransferData):
    """image."""

    archive: AbsolutePath | None = key(None, "a docker archive on this machine")
    save: AbsolutePath | None = key(None, "a folder on this machine that keeps an archive of it")


class WeightsData(TransferData):
    """weights."""

    unused = frozenset()
    verify: bool = key(False, "read and hash everything, everywhere")
    prune: bool = key(False, "delete what the giver has not")
    download: HubRepo | None = key(None, "from the hub first: ORG/NAME or ORG/NAME@REVISION")
