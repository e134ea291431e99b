"""How a vllm_serve value becomes arguments, and what placeholders may stand in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import JsonValue

from schema.core.errors import SpecError
from schema.core.strings import flag_name
from schema.inputs.load import plan
from schema.recipe.flags import flag_arguments
from tests.unit.builders.spark_rig import changed, host, project, spark_plan


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        (True, ["--a-b"]),
        (False, ["--no-a-b"]),
        (None, []),
        (0, ["--a-b", "0"]),
        (-1, ["--a-b", "-1"]),
        (0.9, ["--a-b", "0.9"]),
        ("text", ["--a-b", "text"]),
        (["x", 2], ["--a-b", "x", "2"]),
        ({"z": [1, None], "a": {"b": True}}, ["--a-b", '{"z":[1,null],"a":{"b":true}}']),
        ({}, ["--a-b", "{}"]),
        ({"é": "line\nbreak"}, ["--a-b", '{"é":"line\\nbreak"}']),
    ],
)
def test_value_to_arguments(value: JsonValue, arguments: list[str]) -> None:
    assert flag_arguments("a_b", value, str) == arguments


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("a_b.c_d", "x", ["--a-b.c_d", "x"]),
        ("a_b.c.d", True, ["--a-b.c.d", "true"]),
        ("a_b.c", False, ["--a-b.c", "false"]),
        ("a_b.c+", 3, ["--a-b.c+", "3"]),
        ("a_b.c", None, []),
        ("a_b.c", {"d": 1}, ["--a-b.c", '{"d":1}']),
    ],
)
def test_one_key_of_a_json_argument(name: str, value: JsonValue, arguments: list[str]) -> None:
    """vLLM's own form, `--compilation-config.cudagraph_mode NONE`."""
    assert flag_arguments(name, value, str) == arguments
    assert flag_name(name) == name


@pytest.mark.parametrize("name", ["a-b", "a.", "a+", ".a", "a..b", "a.b c", "A.b", "a.b++"])
def test_what_is_no_flags_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a flag's name; allowed: "):
        flag_name(name)


def argv_with(tmp_path: Path, path: tuple[str, ...], value: object) -> tuple[str, ...]:
    root = project(tmp_path, changed(path, value))
    return spark_plan(root, recipe="broken").specs["spark2"].argv


def test_placeholders_in_a_flag_and_doubled_braces(tmp_path: Path) -> None:
    argv = argv_with(
        tmp_path,
        ("vllm_serve", "host"),
        "{node.lan_address},{node.fabric_address},{node.name},{node.rank},{fabric.device},{{x}}",
    )
    assert argv[argv.index("--host") + 1] == "192.168.1.12,10.0.0.2,spark2,1,bond0,{x}"


def test_json_is_passed_as_written(tmp_path: Path) -> None:
    argv = argv_with(tmp_path, ("vllm_serve", "hf_overrides"), {"a": "{node.name} {{x}}"})
    assert '{"a":"{node.name} {{x}}"}' in argv


def test_placeholder_without_a_fabric_names_the_key(tmp_path: Path) -> None:
    data = changed(("multi_node",), None)
    root = project(tmp_path, data)
    alone = host(1, recipe="broken", fabric_address=..., fabric_device=...)
    with pytest.raises(
        SpecError, match=r"env\.GLOO_SOCKET_IFNAME: \{fabric\.device\} has no value"
    ):
        plan({"solo": alone}, None, root)


def test_profile_null_drops_a_flag_and_a_new_one_comes_last(tmp_path: Path) -> None:
    argv = argv_with(
        tmp_path,
        ("profiles", "balanced", "vllm_serve"),
        {"enforce_eager": None, "dtype": "bfloat16", "seed": 7},
    )
    assert "--enforce-eager" not in argv
    assert "--no-enforce-eager" not in argv
    assert argv[argv.index("--dtype") + 1] == "bfloat16"
    assert argv.index("--seed") == argv.index("--nnodes") - 2


@pytest.mark.parametrize("nnodes", [3, None])
def test_number_of_nodes_must_be_the_rigs(tmp_path: Path, nnodes: int | None) -> None:
    value = nnodes and {"nnodes": nnodes, "master_port": 29501}
    with pytest.raises(SpecError, match=r"rig spark has 2 \(spark1, spark2\)"):
        argv_with(tmp_path, ("multi_node",), value)


def test_cache_folders_are_the_mounts_below_the_home_without_the_weights() -> None:
    assert spark_plan().specs["spark1"].cache_folders == (
        "/home/milo/.cache",
        "/home/milo/.cache/vllm",
        "/home/milo/.cache/flashinfer",
    )
    assert spark_plan(recipe="tiny").specs["spark1"].cache_folders == ()
