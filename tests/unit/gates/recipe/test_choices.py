"""Gates of what the recipe asks for: forbidden variables and warnings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gates.gate_sets import check
from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot, Unreadable
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

HEAD, WORKER = "spark1", "spark2"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return spark_plan()


def with_spec(plan: Plan, **changes: Any) -> Plan:
    specs = {name: replace(spec, **changes) for name, spec in plan.specs.items()}
    return replace(plan, specs=specs)


def test_forbidden_env_in_the_recipe_blocks(plan: Plan) -> None:
    forked = with_spec(plan, environ={"VLLM_WORKER_MULTIPROC_METHOD": "fork"})
    found = [v for v in f.beyond_usual(forked, f.healthy(plan)) if v.code == "forbidden-env"]
    assert [(v.node, v.severity) for v in found] == [(HEAD, "block"), (WORKER, "block")]
    assert "ShmRingBuffer" in found[0].evidence
    spawned = with_spec(plan, environ={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"})
    assert "forbidden-env" not in {v.code for v in f.beyond_usual(spawned, f.healthy(plan))}


def test_enforce_eager_warns_where_there_are_cuda_graphs(plan: Plan) -> None:
    eager = with_spec(plan, flags={**plan.specs[HEAD].flags, "enforce_eager": True})
    (found,) = f.beyond_usual(eager, f.healthy(plan))
    assert (found.code, found.severity) == ("enforce-eager", "warn")
    tiny = spark_plan(recipe="tiny")
    assert tiny.specs[HEAD].flags["enforce_eager"] is True
    assert check(tiny, _cpu(tiny)) == []


def _cpu(plan: Plan) -> dict[str, NodeSnapshot]:
    """Healthy hosts without any NVIDIA driver."""
    missing = Unreadable(unreadable="nvidia-smi not found")
    return {name: f.put(seen, "gpus", missing) for name, seen in f.healthy(plan).items()}


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("ghcr.io/x/y:latest", True),
        ("localhost:5000/y", True),
        ("y:1.2", False),
        ("y:latest@sha256:" + "d" * 64, False),
    ],
)
def test_image_latest(plan: Plan, image: str, warned: bool) -> None:
    assert plan.recipe.container is not None
    box = plan.recipe.container.model_copy(update={"image": image, "privileged": False})
    named = replace(plan, recipe=plan.recipe.model_copy(update={"container": box}))
    codes = {v.code for v in check(named, f.healthy(named))}
    assert ("image-latest" in codes) is warned
    assert "privileged" not in codes
