"""A host's GPU driver and what apt would do for another, as `node driver` reports it.

Sizes are bytes. A package's `version` is dpkg's; the driver's is 580.126.09.
"""

from __future__ import annotations

from typing import Literal

from schema.core.base import Frozen
from schema.observed.hardware import MachineSnapshot
from schema.observed.snapshot import Unreadable


class ModulePart(Frozen):
    """A loaded module of the driver, how often it is used, and the modules that use it."""

    name: str
    refs: int
    holders: tuple[str, ...]


class GpuUser(Frozen):
    """A process that has a device file of the driver open."""

    pid: int
    comm: str
    unit: str | None
    container: str | None


class PackageRow(Frozen):
    """A package that apt would exchange: `old` None, it is new; `new` None, it goes.

    `kept`: where the old file comes from for the way back; `none`: from nowhere any more.
    """

    name: str
    old: str | None
    new: str | None
    arch: str | None
    old_arch: str | None
    kept: Literal["kept", "cache", "repository", "repack", "none"] | None


class AptPlan(Frozen):
    """The driver's packages, and what apt would do for the wanted version.

    `wanted` None: the lists have no such version; `available` are those that they have.
    `problem`: why apt would not, in its own words. `download` None: the lists do not say.
    """

    family: dict[str, str]
    holds: tuple[str, ...]
    wanted: str | None
    available: tuple[str, ...]
    branch: str | None
    rows: tuple[PackageRow, ...]
    problem: str | None
    download: int | None


class SigningKey(Frozen):
    """The key that DKMS signs modules with, and whether the firmware knows it (None: unknown)."""

    path: str | None
    enrolled: bool | None


class DriverFacts(Frozen):
    """A host's driver. `versions`: what programs load; `loaded`: the module in the kernel."""

    format: Literal[1]
    module: str
    versions: tuple[str, ...]
    loaded: str | None
    parts: tuple[ModulePart, ...]
    blocked: bool
    users: tuple[GpuUser, ...]
    daemons: tuple[str, ...]
    apt: AptPlan | Unreadable
    dpkg: str | None
    lock: str | None
    free: int
    headers: dict[str, bool]
    signed_only: bool
    key: SigningKey
    cdi: dict[str, tuple[str, ...]]
    took_s: float

    @property
    def by_console(self) -> bool:
        """Whether the kernel itself holds the module, as its console does: no unload passes."""
        return not self.users and any(
            part.name.endswith("_drm") and part.refs > len(part.holders) for part in self.parts
        )


class DriverSnapshot(MachineSnapshot):
    """A node's snapshot with its kernels, its hardware and its driver."""

    driver: DriverFacts | Unreadable
