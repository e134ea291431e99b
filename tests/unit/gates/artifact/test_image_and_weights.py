"""An image that nobody has and that is ours alone; the rest of image and weights: cases/."""

from __future__ import annotations

import dataclasses

from gates.gate_sets import check
from schema.recipe.recipe import ImageBuild
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan


def test_an_image_that_no_node_has_is_built_where_the_recipe_says_how() -> None:
    """A pull of a name that is ours alone asks a registry that does not know it."""
    plan = spark_plan()
    build = ImageBuild(template="vllm-spark", base="scratch")
    container = plan.recipe.container.model_copy(update={"build": build})
    recipe = plan.recipe.model_copy(update={"container": container})
    built = dataclasses.replace(plan, recipe=recipe)
    seen = {name: f.put(s, "docker.images", ()) for name, s in f.healthy(built).items()}
    assert [v.remedy for v in check(built, seen) if v.code == "image-missing"] == [
        "pyinfra INVENTORY deploys/image.py --data build=true"
    ] * 2
