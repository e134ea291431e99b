"""Driver facts for the tests: the seed's tower, 580.126.09 with DKMS, 580.142 in the lists."""

from __future__ import annotations

from typing import Any

from schema.observed.hardware import DriverFacts, DriverSnapshot, GpuUser, PackageRow
from schema.observed.snapshot import NodeSnapshot
from tests.unit.builders import kernel_parts, machine_parts
from tests.unit.builders.recorded import recorded

OLD, NEW = "580.126.09", "580.142"
BUILD = "0ubuntu0.24.04.1"
NAMES = ("libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-kernel-common-580")


def row(name: str, **changes: Any) -> PackageRow:
    """A package of the driver that apt would upgrade."""
    return PackageRow(**{
        "name": name, "old": f"{OLD}-{BUILD}", "new": f"{NEW}-{BUILD}", "arch": "amd64",
        "old_arch": "amd64", "kept": "repository", **changes,
    })  # fmt: skip


def rows() -> tuple[PackageRow, ...]:
    """All that belongs to the upgrade; the firmware's package has the version in its name."""
    firmware = row(f"nvidia-firmware-580-{NEW}", old=None, old_arch=None, kept=None)
    return (*(row(name) for name in NAMES), firmware)


def facts(**changes: Any) -> DriverFacts:
    """The whole host; a change `apt.KEY` is one of apt's plan."""
    apt = {
        "family": dict.fromkeys(NAMES, f"{OLD}-{BUILD}"), "holds": (), "wanted": NEW,
        "available": (OLD, NEW), "branch": "580", "rows": rows(), "problem": None,
        "download": 310 << 20,
        **{key[4:]: value for key, value in changes.items() if key.startswith("apt.")},
    }  # fmt: skip
    own = {key: value for key, value in changes.items() if not key.startswith("apt.")}
    return DriverFacts(**recorded("driver", **{"apt": apt, **own}))


def done(**changes: Any) -> DriverFacts:
    """The host once the driver is changed."""
    family = dict.fromkeys(NAMES, f"{NEW}-{BUILD}")
    return facts(**{
        "versions": (NEW,), "loaded": NEW, "apt.family": family, "apt.rows": (), **changes,
    })  # fmt: skip


def user(pid: int, comm: str, unit: str | None = None, container: str | None = None) -> GpuUser:
    """A process with the GPU open."""
    return GpuUser(pid=pid, comm=comm, unit=unit, container=container)


def with_driver(snapshot: NodeSnapshot, driver: Any = None, kernel: Any = None) -> DriverSnapshot:
    """The snapshot with driver, hardware and kernels."""
    values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
    return DriverSnapshot(
        **values, driver=driver or facts(), kernel=kernel or kernel_parts.facts(),
        hardware=machine_parts.facts(),
    )  # fmt: skip
