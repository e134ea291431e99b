"""The strip of a rig: what the doctor found in each layer of each node. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gates.core.check import Observed
from gates.core.violation import Layer, Violation
from schema.desired.plan import Plan
from schema.observed.snapshot import Unreadable

# The worst last. `ok`: the doctor asked, and found nothing.
State = Literal["ok", "warn", "unknown", "block"]
WORST: tuple[State, ...] = ("ok", "warn", "unknown", "block")
Strip = dict[Layer, State]


def state_of(finding: Violation) -> State:
    """A finding's state: what could not be read is unknown, whether it blocks or not."""
    return "unknown" if finding.unknown else finding.severity


def strips(
    plan: Plan, observed: Observed, findings: Sequence[Violation], probed: bool
) -> dict[str, Strip]:
    """The layers of each node, lowest first, with the worst that was found there.

    A finding of the whole rig counts for every node. The endpoint is a layer of the head, if it was
    asked (`probed`). Of a node that did not answer nothing is known but that.
    """
    made = {}
    for node in plan.rig.nodes:
        seen = observed.get(node.name)
        silent = seen is None or isinstance(seen, Unreadable)
        strip: Strip = {}
        for layer in Layer:
            if layer is Layer.ENDPOINT and not (probed and node.name == plan.rig.head.name):
                continue
            here: list[State] = [
                state_of(finding)
                for finding in findings
                if finding.layer is layer and finding.node in (None, node.name)
            ]
            here.append("unknown" if silent and layer is not Layer.ENDPOINT else "ok")
            strip[layer] = max(here, key=WORST.index)
        made[node.name] = strip
    return made
