"""Endpoint layer: a client gets an answer."""

from __future__ import annotations

import httpx

from deploys.common.load_and_gate import endpoint
from facts.endpoint.completion import Endpoint, ask, metric_names
from gates.engine.state import engine_unit
from operations.engine.own_answer import is_ours
from schema.observed.snapshot import Unreadable
from tests.infra.observe import Observation, expect, serve
from tests.infra.plugin import Rig

ANSWER_TIMEOUT_S = 60.0


def _units(rig: Rig, observation: Observation) -> str:
    """How the units are doing: a node that restarted alone wedges the pair."""
    told = []
    for name, seen in observation.snapshots.items():
        unit = None if isinstance(seen, Unreadable) else engine_unit(seen)
        if unit is None:
            told.append(f"{name}: no unit seen")
        else:
            told.append(f"{name}: {unit.active_state} ({unit.sub_state}), {unit.restarts} restarts")
    return "; ".join(told)


def _where(rig: Rig, observation: Observation) -> Endpoint:
    """The endpoint, with the key where the node shows our own engine there."""
    where, head = endpoint(rig.plan), rig.plan.rig.head.name
    seen = observation.snapshots[head]
    ours = not isinstance(seen, Unreadable) and is_ours(seen, head, where)
    return where.held_by_ours() if ours else where


def test_a_real_completion(rig: Rig, observation: Observation) -> None:
    """/health stays 200 while a rank is lost; only a completion with content proves service."""
    answer = ask(_where(rig, observation), ANSWER_TIMEOUT_S)
    if answer.ok:
        print(f"{rig.plan.recipe.served_model_name}: {answer.detail}: {answer.text!r}")
    expect(
        answer.ok,
        rig.plan.rig.head,
        f"no completion: {answer.detail} (units: {_units(rig, observation)})",
        "a completion with content",
        f"{serve(rig)} (it restarts the pair, never one node alone)",
    )


def test_metrics_are_reachable(rig: Rig, observation: Observation) -> None:
    """Prometheus and the benchmarks read them."""
    where = _where(rig, observation)
    try:
        count, trouble = len(metric_names(where)), ""
    except httpx.HTTPError as error:
        count, trouble = 0, f"{type(error).__name__}: {error}"
    expect(
        count > 0,
        rig.plan.rig.head,
        f"no vllm: metric at {where.base_url}/metrics {trouble}".rstrip(),
        "one or more",
        f"pyinfra {rig.inventory} deploys/doctor.py -y",
    )
