"""Which runtime a rig's engine has: the one place that asks."""

from __future__ import annotations

from deploys.common.runtime import Runtime
from deploys.procedures.cluster.deployment import Deployment
from deploys.procedures.engine.installed import Installed
from schema.desired.plan import Plan

_RUNTIMES: dict[str, Runtime] = {
    "container": Installed(),
    "venv": Installed(),
    "deployment": Deployment(),
}


def runtime_of(plan: Plan) -> Runtime:
    """The runtime of the plan's engine."""
    return _RUNTIMES[plan.runtime]
