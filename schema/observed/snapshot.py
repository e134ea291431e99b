"""What one host is, as `node snapshot` reports it: the typed form of that one JSON document.

A section that could not be read is an `Unreadable` with the reason: unknown is not absent.
Sizes are bytes unless the name says otherwise; times are Unix seconds; a process is identified
by pid + start_ticks (field 22 of /proc/PID/stat) + the boot_id of its host.
"""

from __future__ import annotations

from typing import Literal

from schema.core.base import Frozen, PrintableLine
from schema.observed.docker import Container, Docker, ImageFile, ImageFileProbe
from schema.observed.files import FileState, Journal, Venv, VenvProbe, Weights
from schema.observed.health import Health
from schema.observed.machine import Disk, EngineProcess, Gpus, Identity, Memory, ShmSegment
from schema.observed.network import Connection, Network, Port, ReachAsk
from schema.observed.units import CronLine, Unit, Watched


class Unreadable(Frozen):
    """A section that the host could not report, with the reason."""

    unreadable: PrintableLine


class NodeSnapshot(Frozen):
    """Everything that the gates, the doctor and the diff read about one host."""

    format: Literal[1]
    took_s: float
    identity: Identity
    gpus: Gpus | Unreadable
    memory: Memory | Unreadable
    shm: tuple[ShmSegment, ...] | Unreadable
    engine_processes: tuple[EngineProcess, ...] | Unreadable
    network: Network | Unreadable
    ports: tuple[Port, ...] | Unreadable
    connections: tuple[Connection, ...] | Unreadable = ()
    docker: Docker | Unreadable
    units: tuple[Unit, ...] | Unreadable
    cron: tuple[CronLine, ...] | Unreadable = ()
    files: tuple[FileState, ...] | Unreadable
    weights: tuple[Weights, ...] | Unreadable
    image_files: tuple[ImageFile, ...] | Unreadable = ()
    venvs: tuple[Venv, ...] | Unreadable = ()
    disks: tuple[Disk, ...] | Unreadable
    sysctls: dict[str, str] | Unreadable
    journal: Journal | Unreadable
    watch: Watched | Unreadable | None = None
    health: Health | Unreadable = Health()
    node_version: str | None

    @property
    def supervisors(self) -> tuple[tuple[Container, ...], tuple[Unit, ...]]:
        """The containers and units that may keep a process alive, as far as they could be read:
        for a remedy, not for a judgement.
        """
        return (
            () if isinstance(self.docker, Unreadable) else self.docker.containers,
            () if isinstance(self.units, Unreadable) else self.units,
        )


class SnapshotRequest(Frozen):
    """What a caller wants looked at beyond the host's general state; all may be empty."""

    files: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    image_files: tuple[ImageFileProbe, ...] = ()
    venvs: tuple[VenvProbe, ...] = ()
    weights: tuple[str, ...] = ()
    deep: bool = False
    fabric_device: str | None = None
    fabric_mtu: int | None = None
    peers: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()
    reach: tuple[ReachAsk, ...] = ()
    disks: tuple[str, ...] = ()
    sysctls: tuple[str, ...] = ()
