"""The doctor's look at the secrets: by name, mode and owner, without a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gates.recipe import drift, missing
from node.rules.secret import SECRETS_PATH
from schema.plan import Plan
from tests.unit.builders import rigs
from tests.unit.builders.engine_parts import absent_file
from tests.unit.builders.rigs import changed, project, put, spark_plan

SECRETS = {"HF_TOKEN": {"env": "T"}, "PIN": {"node_file": "~/pin"}}
FILE = f"file {SECRETS_PATH}: "
LAST = 6  # the file of secrets, behind the six that are rendered


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    root = project(tmp_path, changed(("secrets",), SECRETS))
    return spark_plan(root, recipe="broken")


def texts(plan: Plan, *changes: tuple[str, Any]) -> list[str]:
    """The differences of the head with these values in its snapshot."""
    seen = rigs.serving(plan)["spark1"]
    for path, value in changes:
        seen = put(seen, path, value)
    return [difference.text for difference in drift(plan, plan.rig.head, seen)]


def test_a_rig_with_its_secrets_has_no_difference(plan: Plan) -> None:
    assert texts(plan) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (f"files.{LAST}.content", "#\nHF_TOKEN=***\n", "HF_TOKEN, wanted HF_TOKEN, PIN"),
        (f"files.{LAST}.content", None, "no secret, wanted HF_TOKEN, PIN"),
        (f"files.{LAST}.mode", "0644", "mode 0644, wanted mode 0600"),
        (f"files.{LAST}.uid", 1000, "owner 1000:0, wanted owner 0:0"),
        (f"files.{LAST}", absent_file(SECRETS_PATH), "absent, wanted a file with HF_TOKEN, PIN"),
    ],
)
def test_each_difference_is_one_line(plan: Plan, path: str, value: Any, said: str) -> None:
    assert texts(plan, (path, value)) == [FILE + said]


def test_the_order_of_the_names_is_none(plan: Plan) -> None:
    assert texts(plan, (f"files.{LAST}.content", "PIN=***\nHF_TOKEN=***\n")) == []


def test_a_live_engine_without_its_secret(plan: Plan) -> None:
    """Of a name that no host reports (PIN) nothing is known."""
    environ = {k: v for k, v in plan.specs["spark1"].environ.items() if k.startswith("VLLM_")}
    bare = (
        ("docker.containers.0.environ", plan.specs["spark1"].environ),
        ("engine_processes.0.environ", environ),
    )
    assert texts(plan, *bare) == ["HF_TOKEN not set, recipe says set, as a secret"]


def test_a_file_that_no_recipe_asks_for(plan: Plan) -> None:
    seen = rigs.serving(plan)["spark1"]
    assert isinstance(seen.files, tuple)
    bare = spark_plan(recipe="tiny")
    other = put(rigs.serving(bare)["spark1"], "files", seen.files)
    said = [d.text for d in drift(bare, bare.rig.head, other) if d.name == SECRETS_PATH]
    assert said == [FILE + "a file, wanted absent: the recipe names no secret"]


def test_a_node_gets_its_own_home(plan: Plan) -> None:
    assert plan.specs["spark1"].secrets["PIN"].node_file == "/home/milo/pin"
    assert SECRETS_PATH in plan.requests["spark1"].files


def test_what_cannot_be_had_blocks(plan: Plan) -> None:
    (found,) = missing(plan, [("spark2", "why", "what to do")])
    assert (found.code, found.severity, found.node) == ("secret-missing", "block", "spark2")
    assert (found.evidence, found.remedy) == ("why", "what to do")
