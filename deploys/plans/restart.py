"""What a cold restart has to do on a rig, planned once from one observation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyinfra import state
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.plans.rig import Procedure, once_a_run
from deploys.plans.stop import unmapped
from facts.looks import Orphans
from facts.node import ask_each, real
from gates.gate_sets import check
from gates.gpu import cards_after, system_need
from schema.plan import CONTAINER, UNIT, Plan
from schema.snapshot import Unreadable

# TERM's time to work, and how long memory may take to drain (0.5 s on an H200, field-notes.md).
TERM_S = 15
SETTLE_S = 30


@dataclass(frozen=True)
class ColdWork:
    """The steps of one cold restart; node names in sets."""

    reap_request: Mapping[str, Any]
    found: Mapping[str, Mapping[str, Any]]
    to_reap: frozenset[str]
    to_clear: frozenset[str]
    segments: Mapping[str, tuple[str, ...]]
    needs: Mapping[str, Mapping[str, Any]]


@once_a_run
def plan(rig: Procedure) -> ColdWork:
    """The work of this run, the same object for all hosts; DeployError when it cannot be known."""
    plan, snapshots, up = rig.plan, rig.snapshots, rig.up.all
    request = reap_request(plan)
    found = {name: _others(seen) for name, seen in _orphans(real(state), plan, request).items()}
    ended = {name: {row["pid"] for row in seen["ended"]} for name, seen in found.items()}
    rig.gate_more(check(plan, snapshots, (cards_after(ended),)))
    segments = {name: unmapped(snapshot) for name, snapshot in snapshots.items()}
    return ColdWork(
        reap_request=request,
        found=found,
        # A stopping engine may leave processes behind: those nodes are looked at again, too.
        to_reap=frozenset(n for n, seen in found.items() if seen["ended"]) | up,
        to_clear=frozenset(n for n, names in segments.items() if names) | up,
        segments=segments,
        needs={
            node.name: {"need_available_bytes": need, "need_free_bytes": None}
            for node in plan.rig.nodes
            if (need := system_need(plan, node, snapshots[node.name])) is not None
        },
    )


def reap_request(plan: Plan) -> dict[str, Any]:
    """What node's `reap` takes for this plan's engine."""
    ports = [plan.recipe.port]
    if plan.recipe.multi_node is not None:
        ports.append(plan.recipe.multi_node.master_port)
    return {
        "unit": UNIT,
        "container": CONTAINER,
        "ports": ports,
        "hold": True,
        "term_s": TERM_S,
        "settle_s": SETTLE_S,
    }


def _orphans(state: State, plan: Plan, request: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What a reap would do on each node, asked at the same time."""
    found = ask_each(state, plan, Orphans(), dict.fromkeys(plan.requests, json.dumps(request)))
    answers: dict[str, Mapping[str, Any]] = {
        name: seen for name, seen in found.items() if not isinstance(seen, Unreadable)
    }
    silent = [
        f"{name} did not say which processes are orphans: {seen.unreadable}"
        for name, seen in found.items()
        if isinstance(seen, Unreadable)
    ]
    if silent:
        raise DeployError(f"nothing was changed: {'; '.join(silent)}")
    return answers


def _others(seen: Mapping[str, Any]) -> Mapping[str, Any]:
    """A reap's answer without what it spares of our own engine: the restart stops that first."""
    spared = [p for p in seen["spared"] if UNIT not in p["why"]]
    return {**seen, "spared": spared}
