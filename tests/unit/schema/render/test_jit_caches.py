"""Where an engine's compiled kernels are kept: by the recipe where it says so, else by rigbook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from schema.desired.plan import EngineSpec, Plan
from schema.render.jit_caches import kept, key
from tests.unit.builders.spark_rig import ROOT, project, spark_plan

OURS = "/var/cache/rigbook/jit/dgx-vllm-eugr-nightly-latest-e5f44a89"
ALL = {
    "VLLM_CACHE_ROOT": "/rigbook/jit/vllm",
    "TRITON_CACHE_DIR": "/rigbook/jit/triton",
    "TILELANG_CACHE_DIR": "/rigbook/jit/tilelang",
    "DG_JIT_CACHE_DIR": "/rigbook/jit/deep_gemm",
    "FLASHINFER_WORKSPACE_BASE": "/rigbook/jit/flashinfer",
}


def changed(folder: Path, **changes: Any) -> Plan:
    """The plan of the seed's recipe with these keys of `container`, `env` and so on replaced."""
    data = yaml.safe_load((ROOT / "catalog/recipes/deepseek-v4-flash.yaml").read_text())
    for name, value in changes.items():
        data[name] = {**data[name], **value} if isinstance(value, dict) else value
    return spark_plan(project(folder, data), recipe="broken")


def of(plan: Plan) -> tuple[EngineSpec, dict[str, str]]:
    """The head's engine, and those of its variables that place a cache."""
    spec = plan.specs["spark1"]
    return spec, {name: value for name, value in spec.environ.items() if name in ALL}


def test_the_specs_have_them() -> None:
    """Mounts of the recipe stay: a warm cache is worth more than one place for all."""
    spec, environ = of(spark_plan())
    assert environ == {name: ALL[name] for name in ("TRITON_CACHE_DIR", "TILELANG_CACHE_DIR")}
    assert spec.volumes[-1] == (OURS, "/rigbook/jit", False)
    assert spec.jit_folders == ("/var/cache/rigbook", "/var/cache/rigbook/jit", OURS)
    assert kept(spec) == {
        "vllm": "/home/milo/.cache/vllm",
        "triton": f"{OURS}/triton",
        "tilelang": f"{OURS}/tilelang",
        "deep_gemm": "/home/milo/.cache/vllm/deep_gemm",
        "flashinfer": "/home/milo/.cache/flashinfer",
    }
    asked = spark_plan().requests["spark1"].files
    assert {OURS, *kept(spec).values()} <= set(asked)


def test_a_recipe_that_mounts_none_gets_all(tmp_path: Path) -> None:
    spec, environ = of(changed(tmp_path, container={"volumes": []}))
    assert environ == ALL and spec.volumes == ((OURS, "/rigbook/jit", False),)
    assert set(kept(spec).values()) == {
        f"{OURS}/{name}" for name in ("vllm", "triton", "tilelang", "deep_gemm", "flashinfer")
    }


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        # the whole home's cache, as eugr's README mounts it for the hub
        ({"container": {"volumes": [{"source": "~/.cache", "target": "/root/.cache"}]}},
         {"TRITON_CACHE_DIR", "TILELANG_CACHE_DIR"}),
        ({"container": {"volumes": [{"source": "/c", "target": "/root"}]}}, set()),
        ({"container": {"volumes": [{"source": "/c", "target": "/home/v/.triton/cache"}]}},
         set(ALL) - {"TRITON_CACHE_DIR"}),
        # nothing can be kept behind a mount that is read only
        ({"container": {"volumes": [{"source": "/c", "target": "/root", "read_only": True}]}},
         set(ALL)),
        ({"container": {"jit_caches": False}}, set()),
    ],
)  # fmt: skip
def test_what_the_recipe_places_is_left_to_it(
    tmp_path: Path, changes: dict[str, Any], wanted: set[str]
) -> None:
    _, environ = of(changed(tmp_path, **changes))
    assert set(environ) == wanted


def test_a_variable_of_the_recipe_wins(tmp_path: Path) -> None:
    env = {"TRITON_CACHE_DIR": "/models/triton", "TILELANG_CACHE_DIR": "/tmp/tilelang"}
    spec, environ = of(changed(tmp_path, env=env))
    assert environ == env and spec.jit_folders == ()
    found = kept(spec)
    assert found["triton"] == "/home/milo/models/triton"
    assert "tilelang" not in found, "it dies with the container, and nobody said otherwise"


def test_a_variable_that_must_not_be_set_is_not(tmp_path: Path) -> None:
    rule = {"name": "TRITON_CACHE_DIR", "reason": "a broken build"}
    _, environ = of(changed(tmp_path, forbidden_env=[rule]))
    assert set(environ) == {"TILELANG_CACHE_DIR"}


def test_engines_that_compile_nothing_get_none() -> None:
    spec, environ = of(spark_plan(recipe="tiny"))
    assert environ == {} and spec.jit_folders == () and kept(spec) == {}


@pytest.mark.parametrize("image", [
    "vllm:1", "ghcr.io/a/vllm:1", f"ghcr.io/a/vllm@sha256:{'ab' * 32}", "localhost:5000/a/vllm",
])  # fmt: skip
def test_each_image_has_a_folder_of_its_own(image: str) -> None:
    assert key(image) != key(f"{image}x") and "/" not in key(image) and ":" not in key(image)
