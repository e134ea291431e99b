"""Each node's driver and what apt would do: asked in the command of the snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyinfra.api import State

from facts.hardware import observe_machines
from facts.observe import Looks
from facts.rignode.fact import NodeFact
from facts.rignode.together import Together
from schema.desired.plan import Plan
from schema.observed.hardware import DriverFacts, DriverSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable


class Drivers(NodeFact[DriverFacts]):
    """The host's DriverFacts. The request names the module and the version that is wanted."""

    verb = "driver"
    kind = DriverFacts
    # three simulations and the lists of a distribution, on a slow disk
    timeout_s = 180


def observe_drivers(
    state: State, plan: Plan, request: Mapping[str, str | None], fresh: bool = False
) -> Looks:
    """The rig with each node's kernels, hardware and driver, by one command a node."""
    asked = Together(state, plan.requests)
    drivers = asked.add(Drivers(), dict.fromkeys(plan.requests, json.dumps(dict(request))))
    seen = observe_machines(state, plan, request["module"], fresh, asked)
    found: dict[str, NodeSnapshot | Unreadable] = {}
    for name, snapshot in seen.items():
        found[name] = snapshot
        if isinstance(snapshot, NodeSnapshot):
            values = {key: getattr(snapshot, key) for key in type(snapshot).model_fields}
            found[name] = DriverSnapshot.model_construct(**values, driver=drivers()[name])
    return found
