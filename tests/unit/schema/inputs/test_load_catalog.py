"""Every recipe of the catalog and every rig of the inventory loads and renders."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from schema.desired.plan import Plan
from schema.inputs.load import plan, recipe
from tests.unit.builders.spark_rig import ROOT, spark_plan
from tests.unit.builders.tower_rig import tower_plan

RECIPES = sorted((ROOT / "catalog" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_profile_of_every_recipe_renders(file: Path) -> None:
    loaded = recipe(file.stem, ROOT)
    for profile in loaded.profiles:
        make = tower_plan if loaded.venv else spark_plan
        made = make(recipe=file.stem, profile=profile)
        assert made.profile == profile
        # Two of them look after a pair.
        files = 4 if loaded.venv else 6
        assert all(len(documents) == files for documents in made.documents.values())


def test_catalog_is_not_empty() -> None:
    assert {file.stem for file in RECIPES} >= {"deepseek-v4-flash", "tiny"}


def merged(rig: str, group: str = "spark") -> Plan:
    """The plan of an inventory file, its data merged as pyinfra does (the file's name wins)."""
    groups: dict[str, object] = {}
    for name in (group, rig):
        groups |= {
            key: value
            for key, value in runpy.run_path(str(ROOT / "group_data" / f"{name}.py")).items()
            if not key.startswith("__") and isinstance(value, str | int)
            if not key.isupper()
        }
    hosts = runpy.run_path(str(ROOT / "inventory" / f"{rig}.py"))[group]
    return plan({name: {**groups, **data} for name, data in hosts}, None, ROOT)


def test_spark_has_the_seeds_addresses() -> None:
    made = merged("spark")
    assert [
        (n.name, n.role, str(n.lan_address), str(n.fabric_address)) for n in made.rig.nodes
    ] == [
        ("spark1", "head", "192.168.1.11", "10.0.0.1"),
        ("spark2", "worker", "192.168.1.12", "10.0.0.2"),
    ]
    assert made.rig.fabric is not None
    assert (made.rig.head.fabric_device, made.rig.fabric.mtu) == ("bond0", 9000)
    assert (made.recipe.name, made.profile) == ("deepseek-v4-flash", "balanced")
    assert made.rig.head.home == "/home/milo"


def test_lab_has_the_same_shape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RIGBOOK_LAB_HOME", str(tmp_path))
    made = merged("lab")
    assert [(n.name, n.role, n.rank) for n in made.rig.nodes] == [
        ("lab1", "head", 0),
        ("lab2", "worker", 1),
    ]
    assert (made.rig.name, made.recipe.name) == ("lab", "tiny")


def test_tower_has_one_node_and_the_seeds_numbers() -> None:
    made = merged("tower", "tower")
    assert [(n.name, n.role, n.rank) for n in made.rig.nodes] == [("tower", "head", 0)]
    loaded = made.recipe
    assert loaded.name == "qwen3.6-27b" and loaded.container is None and loaded.venv is not None
    assert loaded.venv.version == "0.19.2rc1"
    assert [tool.id for tool in loaded.patch_tools] == ["genesis"]
    assert [b.tokens_per_s for b in loaded.expect.baselines] == [79.4]
    argv = made.specs["tower"].argv
    assert argv[:3] == ("/opt/genesis/venv/bin/vllm", "serve", "/home/milo/models/Qwen3.6-27B")
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert '"method":"mtp"' in argv[argv.index("--speculative-config") + 1]


def test_the_rehearsal_tower_has_the_same_shape(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RIGBOOK_LAB_HOME", str(tmp_path))
    made = merged("labtower", "tower")
    assert [(n.name, n.role, str(n.lan_address)) for n in made.rig.nodes] == [
        ("tower1", "head", "10.88.0.51")
    ]
    assert (made.rig.name, made.recipe.name) == ("labtower", "tiny-venv")


def test_deepseek_keeps_what_the_seed_says() -> None:
    loaded = recipe("deepseek-v4-flash", ROOT)
    assert loaded.weights.shards == 46
    assert loaded.expect.start_budget_s == 900
    assert loaded.expect.reasoning
    assert loaded.expect.tools
    assert loaded.default_profile == "balanced"
    rates = {(b.profile, b.concurrency): b.tokens_per_s for b in loaded.expect.baselines}
    assert len(rates) == len(loaded.expect.baselines) == 13
    assert rates["throughput", 16] == 163.2
    assert rates["latency", 1] == 37.8
    assert rates["balanced", 8] == 105.0
    patch, inductor = loaded.patches
    assert (patch.contains, patch.count) == ("empty_cache", 2)
    assert (inductor.id, inductor.versions) == ("inductor-functionalization", "<0.24")
    assert [(rule.name, rule.value) for rule in loaded.forbidden_env] == [
        ("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    ]


def test_the_recipe_that_cannot_start_differs_by_its_flag() -> None:
    made = spark_plan(recipe="broken", recipes_dir="tests/system/lab/recipes")
    tiny = spark_plan(recipe="tiny")
    extra = set(made.specs["spark1"].argv) - set(tiny.specs["spark1"].argv)
    assert extra == {"--rigbook-no-such-flag"}
    assert made.specs["spark1"].environ == tiny.specs["spark1"].environ
    assert made.recipe.container == tiny.recipe.container
