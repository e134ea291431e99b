"""What stop has to do, and how it proves that nothing of the engine is left."""

from __future__ import annotations

import time

from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.plans.rig import Procedure, once_a_run
from facts.node import observe
from operations.run import StepFailed
from schema.plan import CONTAINER, UNIT, Plan
from schema.snapshot import NodeSnapshot, Unreadable

# A port stays in use for a moment after its process is gone.
SETTLE_S = 20.0


@once_a_run
def refuse_survivors(rig: Procedure) -> None:
    """DeployError when an engine outlived its stopped unit: "no change" would say it is gone."""
    if rig.up.all:
        return
    left, unseen = [], []
    for name, snapshot in rig.snapshots.items():
        if blind := _unseen(rig.plan, snapshot):
            unseen.append(f"{name}: {', '.join(blind)}")
        engines = (
            () if isinstance(snapshot.engine_processes, Unreadable) else (snapshot.engine_processes)
        )
        pids = {process.pid for process in engines}
        held = () if isinstance(snapshot.ports, Unreadable) else snapshot.ports
        found = _containers(snapshot)
        found += [
            f"engine process {p.pid} on port {p.port}"
            for p in held
            if p.pid in pids and p.port in _ports(rig.plan)
        ]
        left += [f"{name}: {', '.join(found)}"] if found else []
    if left:
        raise DeployError(
            f"{UNIT} is stopped, but the engine lives on: {'; '.join(left)}; end it there with: "
            f"sudo docker rm -f {CONTAINER}; sudo rignode reap --dry; sudo rignode reap"
        )
    if unseen:
        raise DeployError(
            f"nothing was changed: whether the engine is gone is not known: {'; '.join(unseen)}"
        )


def _unseen(plan: Plan, snapshot: NodeSnapshot) -> list[str]:
    """What could not be read of what tells that the engine is gone: unknown is not free."""
    looks: dict[str, object] = {}
    if plan.recipe.container is not None:
        looks["docker"] = snapshot.docker
    looks |= {"processes": snapshot.engine_processes, "ports": snapshot.ports}
    return [
        f"{name} not readable: {found.unreadable}"
        for name, found in looks.items()
        if isinstance(found, Unreadable)
    ]


def _containers(snapshot: NodeSnapshot) -> list[str]:
    if isinstance(snapshot.docker, Unreadable):
        return []
    running = [c for c in snapshot.docker.containers if c.state == "running"]
    return [f"container {c.name}" for c in running if c.name == CONTAINER]


def _ports(plan: Plan) -> set[int]:
    multi = plan.recipe.multi_node
    return {plan.recipe.port} | ({multi.master_port} if multi is not None else set())


def left_over(plan: Plan, snapshot: NodeSnapshot) -> list[str]:
    """What of the engine is still on a node: processes, its container, its ports, its segments."""
    found = _unseen(plan, snapshot)
    if not isinstance(snapshot.engine_processes, Unreadable):
        found += [f"process {p.pid} {p.comm}" for p in snapshot.engine_processes]
    found += _containers(snapshot)
    ports = _ports(plan)
    if not isinstance(snapshot.ports, Unreadable):
        found += [f"port {p.port} held by pid {p.pid}" for p in snapshot.ports if p.port in ports]
    if isinstance(snapshot.shm, Unreadable):
        found += [f"/dev/shm not readable: {snapshot.shm.unreadable}"]
    return found + [f"/dev/shm/{name}" for name in unmapped(snapshot)]


def unmapped(snapshot: NodeSnapshot) -> tuple[str, ...]:
    """The engine's segments in /dev/shm that no process maps."""
    if isinstance(snapshot.shm, Unreadable):
        return ()
    return tuple(s.name for s in snapshot.shm if s.is_engines and not s.mappers)


def segments(rig: Procedure) -> dict[str, tuple[str, ...]]:
    """What is to be cleared of /dev/shm, by node: each that stops leaves some there. Where nothing
    of ours stops, it may be another program's."""
    return {name: unmapped(seen) for name, seen in rig.snapshots.items() if name in rig.up.all}


def verify(rig: Procedure) -> str:
    """A line that says so; StepFailed names what is left after SETTLE_S seconds.

    The units are stopped by then, which is what was asked: the change is ended as it is.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = {}
        for name, snapshot in observe(state, rig.plan, fresh=True).items():
            if isinstance(snapshot, Unreadable):
                left[name] = [f"not readable: {snapshot.unreadable}"]
            elif found := left_over(rig.plan, snapshot):
                left[name] = found
        if not left:
            names = ", ".join(node.name for node in rig.plan.rig.nodes)
            what = "no process, container, port or shared memory of the engine is left"
            return f"stopped on {names}; {what}"
        if time.monotonic() > deadline:
            lines = "; ".join(f"{name}: {', '.join(items)}" for name, items in left.items())
            rig.run.close("COMMITTED", f"units stopped, left over or not seen: {lines}")
            raise StepFailed(f"still there after the stop, or not seen: {lines}")
        time.sleep(1.0)
