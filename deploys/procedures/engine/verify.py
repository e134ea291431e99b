"""What verify asks of an endpoint, as one line for each thing that answers."""

from __future__ import annotations

from collections.abc import Sequence

from deploys.procedures.engine.runtimes import runtime_of
from schema.desired.plan import Plan


def answers(plan: Plan) -> Sequence[str]:
    """Lines about what answers; DeployError (exit status 1) names what does not, and what to do."""
    return runtime_of(plan).verify(plan)
