"""Hostile text in every free-text field: refused, or quoted so that nothing of it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from node.engine.config import parse
from schema.core.errors import SpecError
from schema.core.parse import known_keys
from schema.desired.plan import Plan
from schema.inputs.host_data import HostData
from schema.inputs.load import plan
from schema.inputs.runbooks import kind_of
from schema.render.engine_files import docker_run
from tests.unit.builders.engine_files import argv_of_script, exec_start, unit_lines
from tests.unit.builders.spark_rig import ROOT, changed, host, project, spark_plan, tiny

# Each would leave a file CANARY in the working directory, or break out of its line.
HOSTILE = [
    "x'; touch CANARY; #",
    'x"; touch CANARY; #',
    "$(touch CANARY)",
    "`touch CANARY`",
    "x\ntouch CANARY",
    "x\nExecStartPre=/bin/touch CANARY",
    "-rf",
    "--entrypoint=/bin/touch",
    "x; touch CANARY; #",
    "x && touch CANARY",
    "%n $HOME ${PATH} \\",
    "x\\",
    "{node.evil}",
    "\x1b]0;x\x07",
    "../../../etc/passwd",
    "x\u2028y",
    "",
]
RECIPE_FIELDS: list[tuple[str | int, ...]] = [
    ("model",),
    ("description",),
    ("weights", "source"),
    ("weights", "path"),
    ("container", "image"),
    ("container", "runtime"),
    ("container", "gpus"),
    ("container", "shm_size"),
    ("container", "ipc"),
    ("container", "volumes", 0, "source"),
    ("container", "volumes", 0, "target"),
    ("env", "FREE"),
    ("vllm_serve", "model"),
    ("vllm_serve", "served_model_name"),
    ("vllm_serve", "override_generation_config"),
    ("profiles", "balanced", "description"),
    ("profiles", "balanced", "vllm_serve", "dtype"),
    ("default_profile",),
    ("forbidden_env", 0, "name"),
    ("forbidden_env", 0, "value"),
    ("forbidden_env", 0, "reason"),
]
BARE_PAIR = {
    key
    for document in spark_plan(recipe="tiny").documents["spark1"][4:]
    for key, _ in unit_lines(document)
}
BARE = {key for key, _ in unit_lines(spark_plan(recipe="tiny").documents["spark1"][2])}


def harmless_or_refused(make: Callable[[], Plan], folder: Path) -> None:
    """The plan is refused with lines a person can read, or its files carry the text as data."""
    try:
        made = make()
    except SpecError as error:
        assert str(error).isprintable() or all(line.isprintable() for line in error.problems)
        return
    work = folder / "work"
    work.mkdir()
    for name, (script, environment, unit, node_file, *pair) in made.documents.items():
        spec = made.specs[name]
        assert argv_of_script(script, work) == list(spec.argv)
        groups = docker_run(made.recipe, made.profile, spec)
        assert exec_start(unit) == list(chain.from_iterable(groups))
        assert {key for key, _ in unit_lines(unit)} <= BARE
        lines = [f"{key}={value}" for key, value in spec.environ.items()]
        assert environment.content.split("\n") == [*lines, ""]
        assert parse(json.loads(node_file.content)).node == name
        for document in pair:
            assert {key for key, _ in unit_lines(document)} <= BARE_PAIR
    assert sorted(path.name for path in work.iterdir()) == ["bin", "serve.sh"]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("field", RECIPE_FIELDS, ids=lambda f: ".".join(map(str, f)))
def test_recipe_value(tmp_path: Path, field: tuple[str | int, ...], value: str) -> None:
    root = project(tmp_path, changed(field, value))
    harmless_or_refused(lambda: spark_plan(root, recipe="broken"), tmp_path)


def renamed(where: str, value: str) -> dict[str, Any]:
    """The tiny recipe with a hostile KEY (or a hostile text inside JSON or a list)."""
    data = tiny()
    if where == "profile":
        data["profiles"][value] = data["profiles"]["latency"]
        data["default_profile"] = value
    elif where == "json":
        data["vllm_serve"]["override_generation_config"] = {value: [value, {"deep": value}]}
    elif where == "list":
        data["vllm_serve"]["allowed_origins"] = ["x", value]
    else:
        (data if where == "top" else data[where])[value] = "x"
    return data


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("where", ["top", "env", "vllm_serve", "profile", "json", "list"])
def test_recipe_key(tmp_path: Path, where: str, value: str) -> None:
    root = project(tmp_path, renamed(where, value))
    harmless_or_refused(lambda: spark_plan(root, recipe="broken"), tmp_path)


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("key", known_keys(kind_of((), HostData)))
def test_host_data(tmp_path: Path, key: str, value: str) -> None:
    beside = {"waive": {"reason": "known"}, "reason": {"waive": "CODE"}}.get(key, {})
    changes: dict[str, object] = {"recipe": "tiny", **beside, key: value}
    harmless_or_refused(lambda: spark_plan(ROOT, **changes), tmp_path)


@pytest.mark.parametrize("value", HOSTILE)
def test_host_name_and_unknown_key(tmp_path: Path, value: str) -> None:
    with pytest.raises(SpecError):
        plan({value: host(1), "spark2": host(2)}, None, tmp_path)
    with pytest.raises(SpecError, match="unknown key"):
        spark_plan(ROOT, **{value: "x"})
