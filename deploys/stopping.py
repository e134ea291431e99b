"""What stop has to do, and how it proves that nothing of the engine is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyinfra.api import State

from deploys.support import remember
from facts.observe import observe
from operations.node import StepFailed
from operations.run import Run
from schema.engine import CONTAINER, UNIT, Plan
from schema.snapshot import NodeSnapshot, Unreadable

# A port stays in use for a moment after its process is gone.
SETTLE_S = 20.0


@dataclass(frozen=True)
class StopWork:
    """The nodes whose unit runs (or tries to); both empty when nothing is to do."""

    head: frozenset[str]
    workers: frozenset[str]
    _run: list[Run] = field(default_factory=list)

    def run(self, make: Callable[[], Run]) -> Run:
        """The one change that all hosts of this run share."""
        if not self._run:
            self._run.append(make())
        return self._run[0]


def decide(plan: Plan, snapshots: Mapping[str, NodeSnapshot]) -> StopWork:
    """Which units are up, decided once for all hosts."""

    def make() -> StopWork:
        up = frozenset(name for name, snapshot in snapshots.items() if _up(snapshot))
        head = frozenset({plan.rig.head.name})
        return StopWork(head & up, up - head)

    return remember("stop", make)


def _up(snapshot: NodeSnapshot) -> bool:
    if isinstance(snapshot.units, Unreadable):
        return True
    states = [unit.active_state for unit in snapshot.units if unit.name == UNIT]
    return any(state not in ("inactive", "failed") for state in states)


def left_over(plan: Plan, snapshot: NodeSnapshot) -> list[str]:
    """What of the engine is still on a node: processes, its container, its ports."""
    found = []
    if not isinstance(snapshot.engine_processes, Unreadable):
        found += [f"process {p.pid} {p.comm}" for p in snapshot.engine_processes]
    if not isinstance(snapshot.docker, Unreadable):
        running = [c for c in snapshot.docker.containers if c.state == "running"]
        found += [f"container {c.name}" for c in running if c.name == CONTAINER]
    ports = {plan.recipe.port}
    if plan.recipe.multi_node is not None:
        ports.add(plan.recipe.multi_node.master_port)
    if not isinstance(snapshot.ports, Unreadable):
        found += [f"port {p.port} held by pid {p.pid}" for p in snapshot.ports if p.port in ports]
    return found


def nothing_left(state: State, plan: Plan, run: Run) -> str:
    """A line that says so; StepFailed names what is left after SETTLE_S seconds.

    The units are stopped by then, which is what was asked: the change is ended as it is.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = {}
        for name, snapshot in observe(state, plan, fresh=True).items():
            if isinstance(snapshot, Unreadable):
                left[name] = [f"not readable: {snapshot.unreadable}"]
            elif found := left_over(plan, snapshot):
                left[name] = found
        if not left:
            return f"stopped on {', '.join(n.name for n in plan.rig.nodes)}; ports are free"
        if time.monotonic() > deadline:
            lines = "; ".join(f"{name}: {', '.join(items)}" for name, items in left.items())
            run.close("COMMITTED", f"units stopped, left over: {lines}")
            raise StepFailed(f"still there after the stop: {lines}")
        time.sleep(1.0)
