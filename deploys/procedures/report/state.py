"""What the page tells of a rig's nodes: versions, memory and GPUs, changes, backups. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gates.artifact.venv import own_venv
from gates.core.check import Observed, gib
from gates.engine.state import own_container
from node.rules.secret import masked_line
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.backup import BackupRow, Backups
from schema.observed.files import ChangeSummary
from schema.observed.health import GpuHealth, Unknown
from schema.observed.snapshot import NodeSnapshot, Unreadable

MOST_CHANGES, MOST_BACKUPS, MOST_REASON = 20, 5, 300
UNKNOWN, NONE = "unknown", "none"
Tell = Callable[[Node, NodeSnapshot], str]


@dataclass(frozen=True)
class Row:
    """A value of each node, side by side."""

    label: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the nodes have different ones."""
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Change:
    """A change as the rig's journals have it; `status` names the nodes where they differ."""

    at: str
    id: str
    deploy: str
    status: str
    operator: str
    reason: str


@dataclass(frozen=True)
class Backup:
    """A backup of a node."""

    node: str
    id: str
    holds: str
    age: str
    size: str
    state: str


def moment(unix_s: float) -> str:
    """`2026-11-23 20:45 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_s))


def age(seconds: float) -> str:
    """`3 h`, `2 days`: whole units, two of them at least."""
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{max(0.0, seconds):.0f} s"


def _rows(plan: Plan, observed: Observed, tells: Mapping[str, Tell]) -> tuple[Row, ...]:
    made = []
    for label, tell in tells.items():
        values = []
        for node in plan.rig.nodes:
            seen = observed.get(node.name)
            values.append(tell(node, seen) if isinstance(seen, NodeSnapshot) else UNKNOWN)
        if set(values) != {NONE}:
            made.append(Row(label, tuple(values)))
    return tuple(made)


def versions(plan: Plan, observed: Observed) -> tuple[Row, ...]:
    """What runs on each node, in versions."""

    def engine(node: Node, seen: NodeSnapshot) -> str:
        venv = own_venv(plan, node, seen)
        if venv is not None:
            return f"vllm {', '.join(venv.versions.get('vllm', ())) or UNKNOWN} in {venv.target}"
        if isinstance(seen.docker, Unreadable):
            return UNKNOWN
        box = own_container(seen)
        return f"{box.image} {box.image_id.removeprefix('sha256:')[:12]}" if box else NONE

    def docker(_: Node, seen: NodeSnapshot) -> str:
        found = seen.docker
        return UNKNOWN if isinstance(found, Unreadable) else f"{found.version}, {found.store}"

    def driver(_: Node, seen: NodeSnapshot) -> str:
        found = seen.gpus
        if isinstance(found, Unreadable):
            return UNKNOWN
        return f"{found.driver_version}{' (stand-in)' if found.stand_in else ''}"

    def cards(_: Node, seen: NodeSnapshot) -> str:
        found = seen.gpus
        if isinstance(found, Unreadable):
            return UNKNOWN
        return ", ".join(gpu.name for gpu in found.gpus) or NONE

    return _rows(plan, observed, {
        "system": lambda _, seen: f"{seen.identity.os_id} {seen.identity.os_version}, "
                                  f"{seen.identity.arch}",
        "kernel": lambda _, seen: seen.identity.kernel,
        "NVIDIA driver": driver,
        "GPUs": cards,
        "docker": docker,
        "engine": engine,
        "rigbook's program": lambda _, seen: seen.node_version or NONE,
    })  # fmt: skip


def now(plan: Plan, observed: Observed) -> tuple[Row, ...]:
    """Memory, power, clock and room at the moment of the look."""

    def memory(_: Node, seen: NodeSnapshot) -> str:
        found = seen.memory
        if isinstance(found, Unreadable):
            return UNKNOWN
        return f"{gib(found.available)} of {gib(found.total)}"

    def room(_: Node, seen: NodeSnapshot) -> str:
        if isinstance(seen.disks, Unreadable):
            return UNKNOWN
        by_mount = {disk.mount: disk for disk in seen.disks}
        told = (f"{d.mount} {gib(d.free)} of {gib(d.total)}" for d in by_mount.values())
        return "; ".join(told) or NONE

    def gpus(_: Node, seen: NodeSnapshot) -> str:
        if isinstance(seen.health, Unreadable) or isinstance(seen.health.gpus, Unknown):
            return UNKNOWN
        return "; ".join(map(_gpu, seen.health.gpus)) or NONE

    return _rows(plan, observed, {
        "available memory": memory,
        "free on disk": room,
        "GPUs": gpus,
        "up for": lambda _, seen: age(seen.identity.uptime_s),
    })  # fmt: skip


def _gpu(gpu: GpuHealth) -> str:
    parts = [
        f"{gpu.power_w:.0f} of {gpu.power_limit_w:.0f} W"
        if gpu.power_w is not None and gpu.power_limit_w is not None
        else None if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        None if gpu.clock_mhz is None else f"{gpu.clock_mhz} MHz",
        None if gpu.temp_c is None else f"{gpu.temp_c:.0f} °C",
        None if gpu.busy_percent is None else f"{gpu.busy_percent} % busy",
        f"held by {', '.join(gpu.reasons)}" if gpu.reasons else None,
    ]  # fmt: skip
    return f"{gpu.bus_id}: {', '.join(part for part in parts if part) or UNKNOWN}"


def changes(plan: Plan, observed: Observed) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """The newest changes of all nodes, and the nodes whose journal is not known."""
    found: dict[str, dict[str, ChangeSummary]] = {}
    silent = []
    for node in plan.rig.nodes:
        seen = observed.get(node.name)
        if not isinstance(seen, NodeSnapshot) or isinstance(seen.journal, Unreadable):
            silent.append(node.name)
            continue
        for change in seen.journal.changes:
            found.setdefault(change.id, {})[node.name] = change
    rows = sorted(found.values(), key=_opened, reverse=True)[:MOST_CHANGES]
    return tuple(map(_change, rows)), tuple(silent)


def _opened(by_node: Mapping[str, ChangeSummary]) -> float:
    return min(change.opened_unix_s for change in by_node.values())


def _change(by_node: Mapping[str, ChangeSummary]) -> Change:
    of = list(by_node.values())
    words = {name: change.status for name, change in by_node.items()}
    same = len(set(words.values())) == 1
    reason = next((change.reason for change in of if change.reason), None) or ""
    return Change(
        at=moment(_opened(by_node)),
        id=of[0].id,
        deploy=of[0].deploy,
        status=of[0].status if same else ", ".join(f"{s} on {n}" for n, s in words.items()),
        operator=of[0].owner,
        reason=masked_line(" ".join(reason.split()))[:MOST_REASON],
    )


def backups(kept: Mapping[str, Backups | Unreadable]) -> tuple[list[Backup], list[str]]:
    """The newest backups of each node, and a line for each node that has none, or cannot say."""
    rows, lines = [], []
    for name, found in kept.items():
        if isinstance(found, Unreadable):
            lines.append(f"{name}: unknown: {found.unreadable}")
        elif not found.backups:
            lines.append(f"{name}: no backup")
        else:
            rows += [_backup(name, row) for row in found.backups[:MOST_BACKUPS]]
    return rows, lines


def _backup(node: str, row: BackupRow) -> Backup:
    verified = "verified" if row.verified_unix_s is not None else "never verified"
    return Backup(
        node=node,
        id=row.id,
        holds=", ".join(_held(row)) or UNKNOWN,
        age=UNKNOWN if row.age_s is None else age(row.age_s),
        size=UNKNOWN if row.bytes is None else gib(row.bytes),
        state=verified if row.usable else f"not usable: {row.problem}",
    )


def _held(row: BackupRow) -> Iterator[str]:
    if row.tree is not None:
        yield row.tree
    if row.versions is not None:
        yield row.versions.text
