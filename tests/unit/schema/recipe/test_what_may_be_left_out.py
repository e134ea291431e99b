"""A recipe of few lines: weights, profiles and the start's budget have defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schema.core.errors import SpecError
from schema.inputs.load import profile_name, recipe
from schema.recipe.recipe import Recipe
from tests.unit.builders.spark_rig import project

SHORT: dict[str, Any] = {
    "model": "Small",
    "description": "a model of the hub",
    "container": {"image": "some/vllm:1"},
    "vllm_serve": {"model": "some-owner/Small-1.0"},
}


def loaded(folder: Path, **more: Any) -> Recipe:
    """The short recipe with more keys, as the loader reads it."""
    return recipe("broken", project(folder, {**SHORT, **more}))


def test_the_defaults(tmp_path: Path) -> None:
    short = loaded(tmp_path)
    hub = "~/.cache/huggingface/hub/models--some-owner--Small-1.0"
    assert (short.weights.source, short.weights.path) == ("some-owner/Small-1.0", hub)
    assert short.weights.format == "safetensors"
    assert profile_name(short, None) == "default"
    assert short.profiles["default"].vllm_serve == {}
    assert short.expect.start_budget_s == 1800


def test_the_only_profile_is_the_default_one(tmp_path: Path) -> None:
    one = {"fast": {"description": "one", "vllm_serve": {}}}
    assert loaded(tmp_path, profiles=one).default_profile == "fast"


def test_a_source_of_the_hub_has_its_folder(tmp_path: Path) -> None:
    weights = loaded(tmp_path, weights={"source": "a/b"}).weights
    assert weights.path == "~/.cache/huggingface/hub/models--a--b"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"vllm_serve": {"model": "/models/x"}},
            "weights: is missing; allowed: source and path (a model OWNER/NAME needs neither)",
        ),
        (
            {"profiles": {n: {"description": n, "vllm_serve": {}} for n in ("a", "b")}},
            "default_profile: is ''; allowed: a, b",
        ),
        ({"vllm_serve": 7}, "vllm_serve: is the number 7; allowed: a map of keys and values"),
    ],
)
def test_what_no_default_can_stand_for(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path, **more)
    assert str(caught.value) == f"catalog/recipes/broken.yaml: {said}"
