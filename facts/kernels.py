"""What each node of a rig would boot next: asked in the command of the snapshot."""

from __future__ import annotations

import json

from pyinfra.api import State

from facts.observe import Looks, observe
from facts.rignode.fact import NodeFact
from facts.rignode.together import Together
from schema.desired.plan import Plan
from schema.observed.kernel import KernelFacts, KernelSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable


class Kernels(NodeFact[KernelFacts]):
    """The host's KernelFacts. `module` of the request: the driver's kernel module; null: none."""

    verb = "kernel"
    kind = KernelFacts


def observe_kernels(
    state: State,
    plan: Plan,
    module: str | None,
    fresh: bool = False,
    asked: Together | None = None,
) -> Looks:
    """As `observe`, each node's snapshot a KernelSnapshot, by the same command."""
    asked = asked or Together(state, plan.requests)
    request = json.dumps({"module": module})
    kernels = asked.add(Kernels(), dict.fromkeys(plan.requests, request))
    seen = observe(state, plan, fresh, asked)
    found: dict[str, NodeSnapshot | Unreadable] = {}
    for name, snapshot in seen.items():
        found[name] = snapshot
        if isinstance(snapshot, NodeSnapshot):
            values = {key: getattr(snapshot, key) for key in NodeSnapshot.model_fields}
            found[name] = KernelSnapshot.model_construct(**values, kernel=kernels()[name])
    return found
