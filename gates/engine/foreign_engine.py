"""Doctor's findings about what other engines left behind, or still hold."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gates.core.check import MIB, deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.processes import hand_port
from gates.engine.state import is_own
from gates.engine.vllm_flags import NOT_SET, compare, serves
from node.rules.ownership import end, same_container
from node.rules.patterns import LOGIN_UNIT
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.machine import EngineProcess, ShmSegment
from schema.observed.snapshot import NodeSnapshot, Unreadable

# A segment is made a moment before it is mapped.
SHM_SETTLE_S = 30.0
# More names than this make no line that a person would type.
BY_HAND = 8
SHELLS = ("bash", "sh", "zsh", "dash", "fish", "tmux: server", "screen", "sshd", "sudo")


def stale_segments(snapshot: NodeSnapshot) -> list[ShmSegment]:
    """vLLM's shared memory that nobody maps or opens; UnknownSection when it cannot be told."""
    now = snapshot.identity.clock_unix_s
    return [
        segment
        for segment in require(snapshot.shm, "shm")
        if segment.is_engines and not segment.mappers and now - segment.mtime > SHM_SETTLE_S
    ]


@per_node
def shm_stale(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Segments of dead engines hold memory until somebody removes them (C12)."""
    stale = stale_segments(snapshot)
    if stale:
        names = " ".join(shlex.quote(f"/dev/shm/{segment.name}") for segment in stale)
        by_hand = f", or without a restart on {node.name}: sudo rm {names}"
        size = sum(segment.size for segment in stale) / MIB
        yield violation(
            "shm-stale",
            node.name,
            f"{len(stale)} shared memory segments of dead engines on {node.name}",
            evidence=f"{size:.1f} MiB in {names[:300]}; no process maps or opens them",
            remedy=f"{deploy_command(plan, 'restart')} (removes what nobody maps)"
            + (by_hand if len(stale) <= BY_HAND else ""),
        )


@per_node
def foreign_engine(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Another vLLM lives here: launched by hand, or by another container or unit (C14).

    One that nobody supervises is `engine-orphan`'s finding, unless its launcher still lives.
    """
    processes = require(snapshot.engine_processes, "engine_processes")
    engines = {process.pid for process in processes}
    for process in processes:
        if process.ppid in engines or is_own(snapshot, process):
            continue
        by = launched_by(snapshot, process)
        if by is None and (port := hand_port(plan, snapshot, process)) is not None:
            by = f"started by hand, its shell is gone; it serves on port {port}"
        if by is None:
            continue
        yield violation(
            "foreign-engine",
            node.name,
            f"a vLLM that is not ours runs on {node.name}: pid {process.pid}, {by}",
            evidence=f"{' '.join(process.argv)[:160]!r}; holds {_holds(snapshot, process)}"
            f"{_against(plan, node, process)}",
            remedy=_end(node, snapshot, process),
        )


def launched_by(snapshot: NodeSnapshot, process: EngineProcess) -> str | None:
    """Who keeps a foreign engine alive; None for an orphan."""
    if process.container_id is not None:
        # Without docker's word nobody knows whose container it is, ours or another's.
        if isinstance(snapshot.docker, Unreadable):
            return None
        for container in snapshot.docker.containers:
            if same_container(container.id, process.container_id) and container.state == "running":
                return f"in container {container.name} (restart policy {container.restart_policy})"
        return None
    if process.unit is not None and not LOGIN_UNIT.match(process.unit):
        units = (
            {} if isinstance(snapshot.units, Unreadable) else {u.name: u for u in snapshot.units}
        )
        unit = units.get(process.unit)
        dead = unit is not None and unit.active_state in ("inactive", "failed")
        return None if dead else f"under unit {process.unit}"
    if process.ppid != 1 and process.parent_comm in SHELLS:
        return f"launched by hand ({process.parent_comm}, pid {process.ppid})"
    return None


def _holds(snapshot: NodeSnapshot, process: EngineProcess) -> str:
    """Memory, GPU memory and ports of a process, for evidence."""
    parts = [f"{process.rss // MIB} MiB resident"]
    if not isinstance(snapshot.gpus, Unreadable):
        used = sum(
            row.used_mib or 0
            for row in snapshot.gpus.processes
            if row.pid == process.pid or _same_box(row.container_id, process)
        )
        parts += [f"{used} MiB of GPU memory"] if used else []
    if not isinstance(snapshot.ports, Unreadable):
        ports = [
            str(p.port)
            for p in snapshot.ports
            if p.pid == process.pid or _same_box(p.container_id, process)
        ]
        parts += [f"ports {', '.join(ports[:5])}"] if ports else []
    return ", ".join(parts)


def _same_box(container_id: str | None, process: EngineProcess) -> bool:
    both = container_id is not None and process.container_id is not None
    return both and same_container(container_id or "", process.container_id or "")


def _against(plan: Plan, node: Node, process: EngineProcess) -> str:
    """How its flags differ from the recipe's, where it serves the same model."""
    argv = plan.specs[node.name].argv
    model = {argv[2], plan.recipe.served_model_name}
    if not serves(process.argv) or not model & set(process.argv):
        return ""
    # What it has otherwise tells more than what it leaves at vLLM's default.
    rows = sorted(compare(argv, process.argv), key=lambda row: row[2] == NOT_SET)
    lines = [f"{name} {have}, recipe says {want}" for name, want, have in rows]
    return f"; against the recipe: {'; '.join(lines[:6])}" if lines else ""


def _end(node: Node, snapshot: NodeSnapshot, process: EngineProcess) -> str:
    """The command that ends it, through whoever keeps it alive."""
    by = end(process, *snapshot.supervisors)
    if by is not None:
        return f"on {node.name}: {by.text}"
    return f"on {node.name}: ps -o pid,ppid,lstart,args -p {process.pid}; kill {process.pid}"


GATES = (shm_stale, foreign_engine)
