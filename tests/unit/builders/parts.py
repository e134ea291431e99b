"""Values that a table of cases breaks a rig with, written as YAML tags: `!port {port: 8000}`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gates.core.check import GIB
from schema.observed.files import WeightsFile
from schema.observed.hardware import GpuUser, SigningKey
from schema.observed.health import Unknown
from schema.observed.kernel import GrubDefault
from schema.observed.machine import ComputeProcess, EngineProcess, ShmSegment
from schema.observed.snapshot import Unreadable
from schema.observed.units import CronLine, GhostFile, Override, Watched
from tests.unit.builders import driver_parts, health_parts
from tests.unit.builders import engine_parts as e
from tests.unit.builders import host_parts as h
from tests.unit.builders import kernel_parts as k
from tests.unit.builders import tower_rig as t


def _process(argv: list[str], pid: int = 77, **changes: Any) -> EngineProcess:
    return h.process(pid, *argv, **changes)


def _segment(name: str, **changes: Any) -> ShmSegment:
    values = {"size": 2**28, "uid": 0, "inode": 7, "mtime": h.NOW - 900, "mappers": (), **changes}
    return ShmSegment(name=name, **values)


MADE: dict[str, Callable[..., Any]] = {
    **health_parts.MADE,
    "change": h.change,
    "compute": lambda **values: ComputeProcess(**values),
    "connection": h.connection,
    "cron": lambda **values: CronLine(**values),
    "container": e.foreign_container,
    "disk": h.disk,
    "ghost": lambda **values: GhostFile(**values),
    "gpu_user": lambda **values: GpuUser(**{"unit": None, "container": None, **values}),
    "package": driver_parts.row,
    "signing_key": lambda **values: SigningKey(**values),
    "gpu": h.discrete_gpu,
    "grub": k.grub,
    "grub_default": lambda **values: GrubDefault(**values),
    "kernel_entry": k.entry,
    "boot_place": k.place,
    "boot_target": k.target,
    "in_image": e.in_image,
    "installed_kernel": k.installed,
    "link": h.link,
    "module": k.module,
    "override": lambda **values: Override(**values),
    "port": h.port,
    "rdma_port": lambda device, addresses=(), **more: h.rdma_port(device, *addresses, **more),
    "process": _process,
    "shm": _segment,
    "unit": h.unit,
    "venv": t.venv,
    "watched": lambda **values: Watched(**{"status": "up", "looked_unix_s": h.NOW - 20, **values}),
    "weights_file": lambda **values: WeightsFile(**values),
}
SCALARS: dict[str, Callable[[Any], Any]] = {
    "GiB": lambda text: int(float(text) * GIB),
    "now": lambda text: h.NOW + float(text or 0),
    "unknown": lambda text: Unknown(unreadable=text),
    "unreadable": lambda text: Unreadable(unreadable=text),
}


def _tuples(value: Any) -> Any:
    """YAML's lists as the snapshot's tuples."""
    return tuple(value) if isinstance(value, list) else value


class _Loader(yaml.SafeLoader):
    """YAML whose tags are the parts of a snapshot."""


def _build(loader: _Loader, tag: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        values = loader.construct_mapping(node, deep=True)
        return MADE[tag](**{str(key): _tuples(value) for key, value in values.items()})
    return SCALARS[tag](getattr(node, "value", ""))


_Loader.add_multi_constructor("!", _build)


def load(path: Path) -> Any:
    """A YAML file with the tags above."""
    return yaml.load(path.read_text(), _Loader)
