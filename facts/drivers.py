"""Each node's driver and what apt would do: a command of its own, at the time of the snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping

import gevent
from pyinfra.api import State

from facts.hardware import observe_machines
from facts.kernels import observe_kernels
from facts.observe import Looks
from facts.rignode.context import real
from facts.rignode.fact import NodeFact, ask_each
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
    """The rig with each node's kernels, hardware and driver, all asked at the same time."""
    state = real(state)
    asked = dict.fromkeys((node.name for node in plan.rig.nodes), json.dumps(dict(request)))
    job = gevent.spawn(ask_each, state, plan, Drivers(), asked)
    module = request["module"]
    seen = observe_machines(state, plan, lambda: observe_kernels(state, plan, module, fresh))
    found: dict[str, NodeSnapshot | Unreadable] = {}
    for name, snapshot in seen.items():
        found[name] = snapshot
        if isinstance(snapshot, NodeSnapshot):
            values = {key: getattr(snapshot, key) for key in type(snapshot).model_fields}
            found[name] = DriverSnapshot.model_construct(**values, driver=job.get()[name])
    return found
