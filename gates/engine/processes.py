"""Gates of processes: no engine without a supervisor, the ports free or ours."""

from __future__ import annotations

from collections.abc import Iterator

from gates.core.check import deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.state import head_port, is_own
from gates.engine.vllm_flags import serves
from node.rules.ownership import end, same_container
from node.rules.patterns import API_SERVER, LOGIN_UNIT, POD_CGROUP
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.docker import Container
from schema.observed.machine import EngineProcess
from schema.observed.network import Port
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.observed.units import Unit


def no_supervisor(
    process: EngineProcess,
    units: dict[str, Unit],
    containers: tuple[Container, ...] | None,
) -> str | None:
    """Why nobody supervises the process, or None for one with a live unit, container or pod.

    `containers` None: docker could not be read, so a container's process is not judged.
    """
    if POD_CGROUP.search(process.cgroup):
        return None  # docker knows no container of containerd's; the kubelet supervises it
    if process.container_id is not None:
        if containers is None:
            return None
        for container in containers:
            if same_container(container.id, process.container_id):
                dead = container.state not in ("running", "paused", "restarting")
                return f"its container {container.name} is {container.state}" if dead else None
        return f"its container {process.container_id[:12]} is gone"
    if process.unit is None:
        return "it belongs to no unit and no container"
    if LOGIN_UNIT.match(process.unit):
        return f"it was left by a login ({process.unit})"
    unit = units.get(process.unit)
    if unit is not None and unit.active_state in ("inactive", "failed"):
        return f"its unit {unit.name} is {unit.active_state}"
    return None


@per_node
def engine_orphan(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """No engine process outlives its supervisor: it holds memory, shm and 29501 (C6, C10, B2)."""
    for process, why in orphans(plan, snapshot):
        title = " ".join(process.argv)[:60] or process.comm
        yield violation(
            "engine-orphan",
            node.name,
            f"pid {process.pid} on {node.name} is an engine process that nobody supervises",
            evidence=f"{why}; {title!r}, parent {process.ppid}, uid {process.uid}, "
            f"{process.rss // 1024**2} MiB resident",
            remedy=f"{deploy_command(plan, 'restart')} --dry names what it would end and spare,"
            " and why; then without --dry",
        )


def orphans(plan: Plan, snapshot: NodeSnapshot) -> list[tuple[EngineProcess, str]]:
    """The engine processes that nobody supervises, each with why; UnknownSection when it cannot be
    told. Not a server that a person left running: it listens, as `hand_port` says.
    """
    processes = require(snapshot.engine_processes, "engine_processes")
    units = {u.name: u for u in require(snapshot.units, "units")}
    docker = snapshot.docker
    containers = None if isinstance(docker, Unreadable) else docker.containers
    found = [(p, no_supervisor(p, units, containers)) for p in processes]
    return [
        (process, why)
        for process, why in found
        if why is not None and hand_port(plan, snapshot, process) is None
    ]


def hand_port(plan: Plan, snapshot: NodeSnapshot, process: EngineProcess) -> int | None:
    """The port, none of ours, on which a process in no container, or the server that it belongs to,
    listens; None: on none. Such an engine is whoever's who started it (node/reap/ownership.py).
    """
    if process.container_id is not None:
        return None
    engines = {one.pid: one for one in require(snapshot.engine_processes, "engine_processes")}
    top = process
    while top.ppid in engines and top.ppid != top.pid:
        top = engines.pop(top.ppid)
    below = {top.pid}
    for _ in engines:
        below |= {one.pid for one in engines.values() if one.ppid in below}
    ports = [p.port for p in require(snapshot.ports, "ports") if p.pid in below]
    server = serves(top.argv) or any(map(API_SERVER.search, top.argv))
    if not server or set(ports) & our_ports(plan):
        return None
    return min(ports, default=None)


def our_ports(plan: Plan) -> set[int]:
    """The ports that an engine of this plan listens on, on any of its nodes."""
    several = plan.recipe.multi_node
    return {head_port(plan), *([several.master_port] if several is not None else [])}


@per_node
def port_taken(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The API's and the rendezvous's ports are free or held by this very engine (C5, C10).

    The rendezvous binds on the head; on a worker it is held by an orphan, or by an engine that was
    started without --headless. Both end the start with EADDRINUSE.
    """
    wanted = {head_port(plan): "the API"} if node.role == "head" else {}
    if plan.recipe.multi_node is not None:
        wanted[plan.recipe.multi_node.master_port] = "the rendezvous"
    for port in require(snapshot.ports, "ports"):
        if port.port in wanted and not is_own(snapshot, port):
            yield violation(
                "port-taken",
                node.name,
                f"port {port.port} ({wanted[port.port]}) on {node.name} is held by "
                f"{port.process or 'a process that is not visible'}",
                evidence=_holder(snapshot, port),
                remedy=_free_port(plan, node, snapshot, port),
            )


def _holder(snapshot: NodeSnapshot, port: Port) -> str:
    named = port.container_id
    docker = snapshot.docker
    if named is not None and not isinstance(docker, Unreadable):
        names = [c.name for c in docker.containers if same_container(c.id, named or "")]
        named = f"{names[0]} ({named[:12]})" if names else f"{named[:12]} (gone)"
    return (
        f"{port.address}:{port.port} listens; pid {port.pid or 'not visible'}, process "
        f"{port.process or 'unknown'}, unit {port.unit or 'none'}, container {named or 'none'}"
    )


def _free_port(plan: Plan, node: Node, snapshot: NodeSnapshot, port: Port) -> str:
    look = f"on {node.name}: sudo ss -ltnp 'sport = :{port.port}'"
    by = end(port, *snapshot.supervisors)
    if by is not None:
        return f"{look}; {by.text}"
    if port.pid is not None:
        return f"{look}; sudo kill -TERM {port.pid}"
    return f"{look}; then {deploy_command(plan, 'doctor')}"


GATES = (engine_orphan, port_taken)
