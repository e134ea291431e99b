"""Keys of inventory, group data and --data, a type a runbook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from types import new_class
from typing import Annotated, ClassVar, Literal, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator

from node.rules.engine import LEASE_S, LEAST_LEASE_S
from node.rules.text import SHA256
from schema.artifact import commit_or_pr
from schema.cluster import ClusterData, Folder
from schema.core import (
    AbsolutePath,
    Address,
    Argument,
    Arguments,
    Device,
    Devices,
    Frozen,
    Hcas,
    HostKeys,
    HostName,
    Mac,
    Name,
    Names,
    Paths,
    Release,
    Url,
    absolute_path,
    as_text,
    as_version,
    env_name,
    group_name,
    host_name,
    key,
    known_keys,
    mount_path,
    single_line,
    types_listed,
)
from schema.plan import Fabric, Node
from schema.recipe import Version
from schema.render_unit import (
    DROP_IN_NAME,
    Argv,
    Assignment,
    DropIn,
    Restart,
    UnitName,
    listed_argv,
)

# Where something comes from or goes: a repository on the hub, the place of a backup's copy.

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][\w./-]*)?")


def _as_repo(value: str) -> str:
    """A repository on the hub, with or without a revision."""
    if not _REPO.fullmatch(value) or ".." in value:
        raise ValueError("is not a repository; allowed: ORG/NAME or ORG/NAME@REVISION")
    return value


def place_kind(place: str) -> Literal["folder", "node"]:
    """What a copy's place is: a folder on the node, or a node."""
    return "folder" if place.startswith("/") else "node"


def _as_place(value: str) -> str:
    """Where a copy lies."""
    if value.startswith(("operator:", "sftp:")):
        raise ValueError(
            "is outside the rig; allowed: NODE or a folder of the node; restic or rclone takes it "
            "from there: docs/runbooks/backup.md"
        )
    return absolute_path(value) if place_kind(value) == "folder" else host_name(value)


CopyPlace = Annotated[str, AfterValidator(_as_place)]
HubRepo = Annotated[str, AfterValidator(_as_repo)]


# One host's data: what inventory and group_data say of it, and what every runbook takes.
#
# pyinfra merges them with --data into one dict a host; the type of the runbook that runs
# (schema/keys.py) checks it, so that a slip of the pen stops a run
# instead of being ignored.


def as_lease(value: object) -> object:
    """A lease that is only switched on or off."""
    return {True: LEASE_S, False: None}[value] if isinstance(value, bool) else value


class HostData(HostKeys):
    """What every runbook takes on a rig whose engine rigbook installs."""

    unused: ClassVar[frozenset[str]] = frozenset({"lease", "deep"})
    role: Literal["head", "worker"] = key(..., "the head answers clients")
    rank: int | None = key(
        None, "its place in the rig; none: 0 for the head, 1 for a worker", ge=0, le=63
    )
    fabric_address: Address | None = key(None, "its address on the link between the nodes")
    fabric_device: Device | None = key(None, "its own device on that link, such as bond0")
    hcas: Hcas = key((), "its RDMA devices for NCCL_IB_HCA; none: as the recipe says")
    uncabled: Devices = key((), "links of it that never have a cable")
    fabric_mtu: int = key(9000, "what the link carries", "bytes", ge=1280, le=65535)
    home: Annotated[str, AfterValidator(mount_path)] | None = key(
        None, "the login user's home; none: /root or /home/USER"
    )
    recipe: Name = key(..., "what the rig is to serve")
    profile: Name | None = key(None, "a profile of the recipe; none: the recipe's own")
    recipes_dir: Arguments = key((), "more folders of recipes, from the project's root")
    former_rig: Name | None = key(None, "another rig, whose nodes this run may take")
    lease: Annotated[int | None, BeforeValidator(as_lease)] = key(
        None,
        f"the nodes go back by themselves after so long without a sign of life; true: {LEASE_S}",
        "seconds",
        ge=LEAST_LEASE_S,
        le=86400,
    )
    deep: bool = key(False, "hash the weights while looking; slow")

    def node(self, name: str) -> Node:
        """This host as a node of its rig."""
        usual_home = "/root" if self.ssh_user == "root" else f"/home/{self.ssh_user}"
        return Node(
            name=name,
            role=self.role,
            rank=self.rank if self.rank is not None else int(self.role == "worker"),
            lan_address=self.lan_address,
            fabric_address=self.fabric_address,
            fabric_device=self.fabric_device,
            hcas=self.hcas,
            uncabled=self.uncabled,
            ssh_user=self.ssh_user,
            home=self.home or usual_home,
        )

    def fabric(self) -> Fabric | None:
        """The rig's fabric, or None where nothing names this host's device on it."""
        if self.fabric_device is None:
            return None
        return Fabric(mtu=self.fabric_mtu)


class LeasedData(HostData):
    """What changes a rig and may do so under a lease (docs/adr/0027)."""

    unused = frozenset({"deep"})


# The keys that each runbook takes with --data, beside those of every runbook: closed sets.
#
# `...Keys` are those that it takes on a Kubernetes rig as well (cluster_runbook_data.py).

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
    environment: Annotated[tuple[Assignment, ...], BeforeValidator(types_listed)] = key(
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
    commits: Annotated[tuple[Commit, ...], BeforeValidator(types_listed)] = key(
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


# The keys that each runbook takes with --data on a Kubernetes rig: closed sets.

WAIVER = frozenset({"waive", "reason"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SYMBOL = re.compile(r"[A-Za-z_.$][A-Za-z0-9_.$@]{0,255}\Z")


def sha256_hex(value: str) -> str:
    """A sha256 as sha256sum prints it."""
    if not SHA256.match(value):
        raise ValueError("is not a sha256; allowed: 64 hex digits, as sha256sum prints them")
    return value


def symbol(value: str) -> str:
    """The name of a symbol of a shared library."""
    if not _SYMBOL.match(value):
        raise ValueError("is not a symbol's name; allowed: letters, digits, _ . $ @")
    return value


def variables(value: dict[str, str]) -> dict[str, str]:
    """Environment variables by name: values of one line."""
    for name, text in value.items():
        env_name(name)
        single_line(text)
    if not value:
        raise ValueError('is empty; allowed: such as \'{"NAME": "value"}\'')
    return value


def edits(value: dict[str, str]) -> dict[str, str]:
    """Texts of a command line, each with the one that takes its place."""
    for old, new in value.items():
        single_line(old)
        single_line(new)
        if not old or not new or old == new or _VARIABLE.match(old):
            raise ValueError(
                f"{old!r} is no text with another one in its place; allowed: such as "
                '\'{"--slots 4": "--slots 0"}\'; a variable goes by set'
            )
    if not value:
        raise ValueError('is empty; allowed: such as \'{"--slots 4": "--slots 0"}\'')
    return value


def limit_text(value: object) -> object:
    """A limit as it was typed: `--data limit=-1` arrives as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Sha256 = Annotated[str, AfterValidator(sha256_hex)]
Symbol = Annotated[str, AfterValidator(symbol)]
Variables = Annotated[dict[str, str], AfterValidator(variables)]
Edits = Annotated[dict[str, str], AfterValidator(edits)]


class ClusterServeData(ClusterData):
    """serve."""


class ClusterVerifyData(ClusterData):
    """verify."""

    unused = WAIVER


class ClusterDoctorData(DoctorKeys, ClusterData):
    """doctor."""

    unused = WAIVER


class ClusterRollbackData(RollbackKeys, ClusterData):
    """rollback."""

    unused = frozenset({"deadline"})


class ClusterRebootData(RebootKeys, ClusterData):
    """reboot."""


class ClusterKernelData(KernelKeys, ClusterData):
    """kernel."""


class ClusterWatchData(WatchKeys, ClusterData):
    """watch: the Deployment's engine, from its host."""

    def conflict(self) -> tuple[str, str] | None:
        return self.unfit() or super().conflict()


class GuardKeys(ClusterData):
    """Whom a guard tells. The webhook's URL is its password: root's file on the host may hold it
    instead.
    """

    webhook: Url | None = key(None, "the URL that the guard tells", repr=False)
    webhook_file: AbsolutePath | None = key(None, "a file of root's on the host with the URL")

    def conflict(self) -> tuple[str, str] | None:
        if self.webhook and self.webhook_file:
            return "webhook", "webhook: and webhook_file; allowed: one of them"
        return super().conflict()


class LibvgpuData(GuardKeys):
    """libvgpu."""

    library: Argument | None = key(None, "a file on this machine; with sha256")
    sha256: Sha256 | None = key(None, "the library's, as sha256sum prints it")
    target: Folder | None = key(None, "the file of vgpu_dir that the plugin mounts; none: as found")
    without: Annotated[tuple[Symbol, ...], BeforeValidator(types_listed)] = key(
        (), "exported names that the library may lack"
    )
    restart_pods: bool = key(False, "restart the pods that keep the former library")
    guard: bool = key(False, "notice when the plugin puts its own library back")
    reapply: bool = key(False, "the guard puts the library back; with guard")
    remove: bool = key(False, "bring the original back")

    def conflict(self) -> tuple[str, str] | None:
        if self.reapply and not self.guard:
            return "reapply", "reapply: without guard; allowed: with guard=true"
        return super().conflict()


class GpuLimitData(GuardKeys):
    """gpu_limit."""

    limit: Annotated[str | None, BeforeValidator(limit_text)] = key(
        None, "the limit, such as 24000m; none: computed from the OOM line in the log"
    )
    wanted: int | None = key(
        None, "what the OOM line asks for; none: read from the log", "bytes", ge=1, le=1 << 50
    )
    reserve_mib: int = key(256, "memory of the GPU that stays free", "MiB", ge=0, le=1 << 20)
    device: int | None = key(
        None, "the GPU that the limit is for, by index; none: the one that is limited", ge=0, le=63
    )
    hardware_mib: int | None = key(
        None, "the GPU's memory; none: as the driver says", "MiB", ge=1, le=1 << 24
    )
    set: Variables | None = key(None, 'other variables: \'{"NAME": "value"}\'')
    edit: Edits | None = key(
        None,
        "texts of the container's command line, each with the one in its place: "
        '\'{"--slots 4": "--slots 0"}\'',
    )
    guard: bool = key(False, "tell when a chart that is deployed again resets what is set")


# The keys of a change of the driver; here alone a lease is on by itself (docs/adr/0028).


def _as_driver(value: object) -> object:
    """A driver's version that pyinfra read as a number: 580.142. The node's lists tell 580.150 from
    580.15, which are the same number (node/kernel/driver.py).
    """
    return str(value) if type(value) in (int, float) else value


class DriverData(LeasedData):
    """driver."""

    lease: Annotated[int | None, BeforeValidator(as_lease)] = key(
        LEASE_S,
        "the nodes go back by themselves after so long without a sign of life; false: they do not",
        "seconds",
        ge=LEAST_LEASE_S,
        le=86400,
    )
    version: Annotated[Version | None, BeforeValidator(_as_driver)] = key(
        None, "the driver, such as 580.142"
    )
    latest: bool = key(False, "the newest driver that the lists have")
    family: Annotated[Name | None, BeforeValidator(as_text)] = key(
        None, "another branch, such as 590; with version or latest"
    )
    candidate: Release | None = key(None, "a kernel to boot with it once, prove and pin")
    budget: int = key(
        1800, "from a kernel's start until it must be blessed", "seconds", ge=30, le=86400
    )


# The keys of deploys/host.py, on rigs whose engine rigbook installs and on Kubernetes rigs.

Panic = Literal["softlockup", "hung_task", "oom"]
Panics = Annotated[tuple[Panic, ...], BeforeValidator(types_listed)]


class HostSettingsKeys(Frozen):
    """host, on any rig."""

    watchdog: int = key(
        60, "until the hardware resets a machine that hangs", "seconds", ge=10, le=600
    )
    panic: int = key(10, "until a kernel that panicked reboots", "seconds", ge=1, le=600)
    panic_on: Panics = key(
        ("softlockup", "hung_task"), "what makes the kernel panic: softlockup, hung_task, oom"
    )
    journal_mib: int = key(2048, "the most that the journal keeps", "MiB", ge=64, le=65536)
    memory_guard: bool | None = key(
        None, "end the engine before memory runs out; none: where GPU and host share theirs"
    )
    memory_guard_mib: int = key(
        2048, "the guard acts below that much available memory", "MiB", ge=64, le=65536
    )
    remove: bool = key(False, "take all of it away")


class HostSettingsData(HostSettingsKeys, HostData):
    """host."""

    only: HostName | None = key(None, "one node; none: all of them")


class ClusterHostSettingsData(HostSettingsKeys, ClusterData):
    """host."""


# The keys of bench and soak.


def _numbers(value: object) -> object:
    """`1,2,4` as the numbers that they are."""
    found = types_listed(value)
    if not isinstance(found, tuple) or not found:
        raise ValueError("is no list of numbers from 1; allowed: such as 1,2,4")
    numbers = []
    for one in found:
        if isinstance(one, bool) or not str(one).isdigit() or int(one) < 1:
            raise ValueError("is no list of numbers from 1; allowed: such as 1,2,4")
        numbers.append(int(one))
    return tuple(numbers)


def _at_most(limit: int) -> AfterValidator:
    def check(values: tuple[int, ...]) -> tuple[int, ...]:
        over = [value for value in values if value > limit]
        if over:
            raise ValueError(f"has {over[0]}; allowed: at most {limit}")
        return values

    return AfterValidator(check)


def _two(values: tuple[str, ...]) -> tuple[str, ...]:
    """The two sides of a comparison, or none."""
    if len(values) not in (0, 2):
        raise ValueError(f"names {len(values)}; allowed: two, such as A,B or last,A")
    return values


Streams = Annotated[tuple[int, ...], BeforeValidator(_numbers), _at_most(256)]
Lengths = Annotated[tuple[int, ...], BeforeValidator(_numbers), _at_most(1_000_000)]


class BenchData(LeasedData):
    """bench."""

    streams: Streams | None = key(
        None, "answers at the same time; none: 1,2,4,8,16, as far as max_num_seqs takes them"
    )
    tokens: int = key(256, "of each answer", "tokens", ge=16, le=8192)
    rounds: int = key(5, "that count, after one that does not", "rounds", ge=3, le=100)
    contexts: Lengths = key((512, 2048, 8192), "lengths of prompts for the prefill, in tokens")
    quick: bool = key(False, "one stream alone, as the first seed measured")
    compare: Annotated[Names, AfterValidator(_two)] = key(
        (), "two kept benches by id, A,B: is B better, worse, or is it noise? Nothing is measured"
    )
    profiles: Names = key(
        (), "serve and measure each of these, and go back to what serves now; names of the recipe's"
    )

    def conflict(self) -> tuple[str, str] | None:
        if self.compare and self.profiles:
            return "compare", "compare: with profiles; allowed: one of them"
        return super().conflict()


class ReportData(HostData):
    """report."""

    unused = GATED - {"deep"}


class ClusterReportData(ClusterData):
    """report."""

    unused = WAIVER


class SoakData(HostData):
    """soak."""

    unused = GATED
    streams: int | None = key(None, "at a time; none: 8, or max_num_seqs", "answers", ge=1, le=256)
    seconds: int = key(300, "how long; an hour tells more", "seconds", ge=5, le=86400)


# Which runbook takes which keys, on which rigs.

K = TypeVar("K", bound=HostKeys)
# One type for the rigs whose engine rigbook installs, one for a Kubernetes rig; or one of them.
RUNBOOKS: dict[str, Sequence[type[HostKeys]]] = {
    "adopt": [AdoptData],
    "backup": [BackupData],
    "bench": [BenchData],
    "doctor": [DoctorData, ClusterDoctorData],
    "driver": [DriverData],
    "fabric": [FabricData],
    "firmware": [FirmwareData],
    "gpu_limit": [GpuLimitData],
    "host": [HostSettingsData, ClusterHostSettingsData],
    "image": [ImageData],
    "kernel": [KernelData, ClusterKernelData],
    "libvgpu": [LibvgpuData],
    "patch": [PatchData],
    "provenance": [ProvenanceData],
    "reboot": [RebootData, ClusterRebootData],
    "report": [ReportData, ClusterReportData],
    "restart": [RestartData],
    "restore": [RestoreData],
    "rollback": [RollbackData, ClusterRollbackData],
    "serve": [ServeData, ClusterServeData],
    "soak": [SoakData],
    "stop": [StopData],
    "unit": [UnitData],
    "upgrade": [UpgradeData],
    "verify": [VerifyData, ClusterVerifyData],
    "wake": [WakeData],
    "watch": [WatchData, ClusterWatchData],
    "weights": [WeightsData],
}
# Keys of an earlier release that are gone, each with what to do instead.
REMOVED = {
    "identity": "encrypted copies are gone; how to open one by hand: docs/runbooks/backup.md",
    "inplace": "an upgrade in place is gone; leave it out: the version comes beside, and goes back "
    "by one rename",
    "recipient": "encrypted copies are gone; restic or rclone takes a backup out of the rig: "
    "docs/runbooks/backup.md",
    "weekly": "the weekly timer is gone; take a cron line, and remove the timer of an earlier "
    "release: docs/runbooks/backup.md",
    "repeat_s": "a state that stays bad is told again each hour; leave it out",
    "start_limit_burst": "unit does not set it any more; by hand: sudo systemctl edit UNIT",
    "start_limit_interval": "unit does not set it any more; by hand: sudo systemctl edit UNIT",
    "flags": 'a command line is edited by its exact text; give edit=\'{"OLD TEXT": "NEW TEXT"}\': '
    "docs/runbooks/gpu_limit.md",
    "git": "no clone is asked any more; git merge-base --is-ancestor says it: "
    "docs/runbooks/provenance.md",
    "loaders": "each loader is a profile of the recipe now (vllm_serve: load_format), and "
    "profiles=A,B measures them: docs/runbooks/bench.md",
    "build": "an image is not built on a node any more; build it there by hand, then run this "
    "without it: docs/runbooks/image.md",
    "method": "an image goes from node to node, never whole through this machine; leave it out",
}


def rigs_of(kind: type[HostKeys]) -> type[HostKeys]:
    """The rigs that a runbook's type is for: HostData, or ClusterData for a Kubernetes rig."""
    return ClusterData if issubclass(kind, ClusterData) else HostData


def runbooks(rigs: type[K]) -> dict[str, type[K]]:
    """The runbooks of these rigs (HostData or ClusterData), each with its type."""
    return {n: kind for n, kinds in RUNBOOKS.items() for kind in kinds if issubclass(kind, rigs)}


def data_type_of(names: tuple[str, ...], rigs: type[K]) -> type[K]:
    """The type of a command line that names these runbooks: what any of them takes on such rigs.

    A name that is none of ours (somebody's own deploy) takes what every runbook of ours takes.
    """
    ours = runbooks(rigs)
    kinds = [ours[n] for n in names] if names and set(names) <= ours.keys() else [*ours.values()]
    return cast(type[K], _merged(tuple(dict.fromkeys(kinds))))


@cache
def _merged(kinds: tuple[type[HostKeys], ...]) -> type[HostKeys]:
    """One type with the keys of all of them."""
    if len(kinds) == 1:
        return kinds[0]
    bases = [k for k in kinds if not any(o is not k and issubclass(o, k) for o in kinds)]
    space = {
        "__module__": __name__,
        "__doc__": "Several runbooks at once.",
        "__annotations__": {"unused": ClassVar[frozenset[str]]},
        "unused": frozenset.intersection(*(kind.unused for kind in kinds)),
    }
    made: type[HostKeys] = new_class(
        "RunbooksData", tuple(bases), exec_body=lambda ns: ns.update(space)
    )
    return made


def taken(kind: type[HostKeys]) -> list[str]:
    """The keys that --data may hold with this type."""
    return [key for key in known_keys(kind) if key not in kind.unused]


def runbooks_of(key: str, rigs: type[HostKeys]) -> list[str]:
    """The runbooks of these rigs that take this key, in alphabetical order."""
    return sorted(name for name, kind in runbooks(rigs).items() if key in taken(kind))
