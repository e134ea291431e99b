"""The keys of deploys/host.py, on rigs whose engine rigbook installs and on Kubernetes rigs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from schema.core.base import Frozen
from schema.core.host_keys import key
from schema.core.types import HostName, listed
from schema.desired.kubernetes import ClusterData
from schema.inputs.host_data import HostData

Panic = Literal["softlockup", "hung_task", "oom"]
Panics = Annotated[tuple[Panic, ...], BeforeValidator(listed)]


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
