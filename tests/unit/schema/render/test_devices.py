"""Which GPUs an engine gets: of the container's option and the variables that CUDA reads."""

from __future__ import annotations

import dataclasses
import json

import pytest

from schema.render.node_json import node_file
from schema.render.start_budget import devices
from tests.unit.builders.spark_rig import spark_plan

UUID = "GPU-5eed0000-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("gpus", "environ", "wanted"),
    [
        ("all", {}, None),
        (None, {}, None),
        ("2", {}, None),  # docker's count: which ones is docker's choice
        ("device=1", {}, ("1",)),
        ('"device=1,3"', {}, ("1", "3")),
        (f"device={UUID}", {}, (UUID,)),
        ("nvidia.com/gpu=all", {}, None),
        (f"nvidia.com/gpu=1,nvidia.com/gpu={UUID}", {}, ("1", UUID)),
        ("all", {"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ("device=2,3", {"CUDA_VISIBLE_DEVICES": "1"}, ("3",)),
        ("all", {"NVIDIA_VISIBLE_DEVICES": "1"}, ("1",)),
        ("all", {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_the_gpus_that_an_engine_gets(
    gpus: str | None, environ: dict[str, str], wanted: tuple[str, ...] | None
) -> None:
    plan = spark_plan()
    node = plan.rig.head
    assert plan.recipe.container is not None
    box = plan.recipe.container.model_copy(update={"gpus": gpus})
    recipe = plan.recipe.model_copy(update={"container": box})
    spec = dataclasses.replace(plan.specs[node.name], environ=environ)
    assert devices(recipe, spec) == wanted
    said = json.loads(node_file(plan.rig, node, recipe, spec))["memory"].get("devices")
    assert said == (None if wanted is None else list(wanted))
