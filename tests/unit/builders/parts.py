"""Values that a table of cases breaks a rig with, written as YAML tags: `!port {port: 8000}`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gates.core import GIB
from schema.hardware import GpuUser, SigningKey
from schema.host import GrubDefault
from schema.snapshot import (
    ComputeProcess,
    CronLine,
    EngineProcess,
    GhostFile,
    Override,
    ShmSegment,
    Unknown,
    Unreadable,
    Watched,
    WeightsFile,
)
from tests.unit.builders import engine_parts, host_parts, rigs


def _process(argv: list[str], pid: int = 77, **changes: Any) -> EngineProcess:
    return host_parts.process(pid, *argv, **changes)


def _segment(name: str, **changes: Any) -> ShmSegment:
    values = {
        "size": 2**28,
        "uid": 0,
        "inode": 7,
        "mtime": host_parts.NOW - 900,
        "mappers": (),
        **changes,
    }
    return ShmSegment(name=name, **values)


MADE: dict[str, Callable[..., Any]] = {
    **host_parts.MADE,
    "change": host_parts.change,
    "compute": lambda **values: ComputeProcess(**values),
    "connection": host_parts.connection,
    "cron": lambda **values: CronLine(**values),
    "container": engine_parts.foreign_container,
    "disk": host_parts.disk,
    "ghost": lambda **values: GhostFile(**values),
    "gpu_user": lambda **values: GpuUser(**{"unit": None, "container": None, **values}),
    "package": host_parts.row,
    "signing_key": lambda **values: SigningKey(**values),
    "gpu": host_parts.discrete_gpu,
    "grub": host_parts.grub,
    "grub_default": lambda **values: GrubDefault(**values),
    "kernel_entry": host_parts.entry,
    "boot_place": host_parts.place,
    "boot_target": host_parts.target,
    "in_image": engine_parts.in_image,
    "installed_kernel": host_parts.installed,
    "link": host_parts.link,
    "module": host_parts.module,
    "override": lambda **values: Override(**values),
    "port": host_parts.port,
    "rdma_port": lambda device, addresses=(), **more: host_parts.rdma_port(
        device, *addresses, **more
    ),
    "process": _process,
    "shm": _segment,
    "unit": host_parts.unit,
    "venv": rigs.venv,
    "watched": lambda **values: Watched(
        **{"status": "up", "looked_unix_s": host_parts.NOW - 20, **values}
    ),
    "weights_file": lambda **values: WeightsFile(**values),
}
SCALARS: dict[str, Callable[[Any], Any]] = {
    "GiB": lambda text: int(float(text) * GIB),
    "now": lambda text: host_parts.NOW + float(text or 0),
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
