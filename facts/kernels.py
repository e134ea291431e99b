"""What each node of a rig would boot next: a second command, at the same time as the snapshot."""

from __future__ import annotations

import json

import gevent
from pyinfra.api import State

from facts.observe import Looks, observe
from facts.rignode.context import real
from facts.rignode.fact import NodeFact, ask_each
from schema.desired.plan import Plan
from schema.observed.kernel import KernelFacts, KernelSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable


class Kernels(NodeFact[KernelFacts]):
    """The host's KernelFacts. `module` of the request: the driver's kernel module; null: none."""

    verb = "kernel"
    kind = KernelFacts


def observe_kernels(state: State, plan: Plan, module: str | None, fresh: bool = False) -> Looks:
    """As `observe`, each node's snapshot a KernelSnapshot; both commands run at the same time."""
    state = real(state)
    request = json.dumps({"module": module})
    requests = {node.name: request for node in plan.rig.nodes}
    job = gevent.spawn(ask_each, state, plan, Kernels(), requests)
    seen = observe(state, plan, fresh)
    found: dict[str, NodeSnapshot | Unreadable] = {}
    for name, snapshot in seen.items():
        found[name] = snapshot
        if isinstance(snapshot, NodeSnapshot):
            values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
            found[name] = KernelSnapshot.model_construct(**values, kernel=job.get()[name])
    return found
