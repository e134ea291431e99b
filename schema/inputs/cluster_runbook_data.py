"""The keys that each runbook takes with --data on a Kubernetes rig: closed sets."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from node.rules.patterns import SHA256
from schema.core.host_keys import key
from schema.core.strings import env_name, single_line
from schema.core.types import AbsolutePath, Argument, Url, listed
from schema.desired.kubernetes import ClusterData, Folder
from schema.inputs.runbook_data import (
    DoctorKeys,
    KernelKeys,
    RebootKeys,
    RollbackKeys,
    WatchKeys,
)

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
    without: Annotated[tuple[Symbol, ...], BeforeValidator(listed)] = key(
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
