"""Whose engine is it: what belongs to the rig's own unit and container, and how it is doing."""

from __future__ import annotations

from typing import Literal

from node.rules.ownership import is_ours
from schema.desired.plan import CONTAINER, UNIT, Plan
from schema.desired.rig import Node
from schema.observed.docker import Container
from schema.observed.machine import EngineProcess
from schema.observed.network import Port
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.observed.units import Unit

EngineState = Literal["absent", "stopped", "starting", "running", "failed"]


def own_container(snapshot: NodeSnapshot) -> Container | None:
    """The container that our unit runs; None when there is none or docker is unreadable."""
    if isinstance(snapshot.docker, Unreadable):
        return None
    named = (c for c in snapshot.docker.containers if c.name.lstrip("/") == CONTAINER)
    return next(named, None)


def engine_unit(snapshot: NodeSnapshot, name: str = UNIT) -> Unit | None:
    """The engine's unit (or another of ours) as systemd sees it; None when systemd does not know
    it or is unreadable.
    """
    if isinstance(snapshot.units, Unreadable):
        return None
    named = (u for u in snapshot.units if u.name == name and u.load_state != "not-found")
    return next(named, None)


def is_own(snapshot: NodeSnapshot, holder: EngineProcess | Port) -> bool:
    """True when a process or the holder of a port is of our unit or our container."""
    container = own_container(snapshot)
    return is_ours(holder, UNIT, container.id if container else None)


def is_up(snapshot: NodeSnapshot) -> bool:
    """True while our engine holds memory: its container runs or a process of it lives."""
    container = own_container(snapshot)
    if container is not None and container.state == "running":
        return True
    processes = snapshot.engine_processes
    return not isinstance(processes, Unreadable) and any(is_own(snapshot, p) for p in processes)


def head_port(plan: Plan) -> int:
    """The port on which the head answers, a profile's override applied."""
    return int(str(plan.specs[plan.rig.head.name].flags.get("port", plan.recipe.port)))


def engine_state(plan: Plan, node: Node, snapshot: NodeSnapshot) -> EngineState:
    """How the node's engine is doing, from its unit, its container (or, in a venv, its processes)
    and (head) its open port.

    `running` says that it runs, not that it answers; only a real completion says that. What
    cannot be read counts as failed, which no caller takes for healthy.
    """
    if isinstance(snapshot.units, Unreadable) or isinstance(_holder(plan, snapshot), Unreadable):
        return "failed"
    unit, container = engine_unit(snapshot), own_container(snapshot)
    if plan.recipe.container is None:
        runs, container = is_up(snapshot), None
    else:
        runs = container is not None and container.state == "running"
    if unit is not None and (unit.active_state == "failed" or unit.sub_state == "auto-restart"):
        return "failed"
    if unit is not None and unit.active_state in ("activating", "reloading"):
        return "starting"
    if unit is not None and unit.active_state == "active" and not runs:
        return "starting"
    if runs:
        return "running" if _answers(plan, node, snapshot) else "starting"
    return "absent" if unit is None and container is None else "stopped"


def _holder(plan: Plan, snapshot: NodeSnapshot) -> object:
    """The section that tells whether the engine runs: docker's, or that of the processes."""
    return snapshot.docker if plan.recipe.container else snapshot.engine_processes


def _answers(plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """A worker has no port of its own; the head is up once ours holds its port."""
    if node.role == "worker":
        return True
    port = head_port(plan)
    return not isinstance(snapshot.ports, Unreadable) and any(
        p.port == port and is_own(snapshot, p) for p in snapshot.ports
    )
