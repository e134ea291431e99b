"""Doctor's findings of what the watch saw: an engine that is silent, and restarts that are over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from gates.core.check import deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot

# The watch looks once a minute where nobody said otherwise; what it saw before says nothing of now.
RECENT_S = 900.0


@per_node
def wedged_silent(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Requests wait, and no step of the engine ends (D5: /health said 200 for 12 days)."""
    seen = require(snapshot.watch, "watch")
    if seen is None or seen.silent is None:
        return
    age = snapshot.identity.clock_unix_s - seen.looked_unix_s
    if age > RECENT_S:
        return
    yield violation(
        "wedged-silent",
        node.name,
        f"the engine of {node.name} is silent: requests wait, and no token is made",
        evidence=f"{seen.silent}, seen {max(0.0, age):.0f} s ago; {seen.evidence or 'no evidence'}",
        remedy=f"{_anew(plan)} (all nodes as one)",
    )


@per_node
def stood_down(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """What comes back after three restarts in six hours is not mended by a fourth (D5)."""
    seen = require(snapshot.watch, "watch")
    if seen is None or seen.stood_down_unix_s is None:
        return
    since = datetime.fromtimestamp(seen.stood_down_unix_s, timezone.utc)
    yield violation(
        "stood-down",
        node.name,
        f"the watch of {node.name} restarts its engine no more",
        evidence=f"{len(seen.restarts)} restarts for silence in six hours; stood down since "
        f"{since:%Y-%m-%d %H:%M:%S} UTC; {seen.evidence or 'no evidence'}",
        remedy=f"mend what the evidence shows, then {_anew(plan)}: an answer ends it",
    )


def _anew(plan: Plan) -> str:
    """What starts the engine anew; on a Kubernetes rig serve does, by a rollout."""
    return deploy_command(plan, "serve" if plan.runtime == "deployment" else "restart")


GATES = (wedged_silent, stood_down)
