"""What `docker run` is told of GPUs, and that the rest of docker's words stay as they were."""

from __future__ import annotations

import pytest

from schema.recipe.recipe import ContainerSpec
from schema.render.engine_files import docker_run
from schema.render.gpu_access import gpu_arguments
from tests.unit.builders.spark_rig import spark_plan


@pytest.mark.parametrize(
    ("runtime", "gpus", "wanted"),
    [
        (None, None, []),
        (None, "all", ["--gpus all"]),
        ("nvidia", "all", ["--gpus all"]),
        ("nvidia", None, ["--runtime nvidia"]),
        ("kata", "all", ["--runtime kata", "--gpus all"]),
        (None, "device=1", ["--gpus device=1"]),
        (None, "nvidia.com/gpu=all", ["--device nvidia.com/gpu=all"]),
        ("nvidia", "nvidia.com/gpu=0,nvidia.com/gpu=1",
         ["--device nvidia.com/gpu=0", "--device nvidia.com/gpu=1"]),
    ],
)  # fmt: skip
def test_gpus_runtime_and_cdi(runtime: str | None, gpus: str | None, wanted: list[str]) -> None:
    box = ContainerSpec(image="vllm:1", runtime=runtime, gpus=gpus)
    assert [" ".join(group) for group in gpu_arguments(box)] == wanted


def test_the_engines_docker_run_has_them() -> None:
    plan = spark_plan()
    groups = docker_run(plan.recipe, plan.profile, plan.specs["spark1"])
    assert ["--gpus", "all"] in groups and not any("--runtime" in group for group in groups)
