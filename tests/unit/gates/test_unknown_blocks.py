"""Unknown means blocked: whatever cannot be read, no gate raises and the run stops (P5)."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from gates.artifact.image import image_equal, image_present
from gates.core.check import per_node, require
from gates.core.waiver import blocking
from gates.doctor.examine import DOCTOR, examine
from gates.gate_sets import SERVING, check
from gates.gpu.driver import driver_equal
from gates.host.reachable import SECTIONS
from gates.weights.weights import weights_equal
from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot, Unreadable
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

READABLE = [
    name
    for name, field in NodeSnapshot.model_fields.items()
    if Unreadable in get_args(field.annotation)
]
GONE = Unreadable(unreadable="permission denied")


def test_no_section_of_the_snapshot_is_forgotten() -> None:
    assert {*SECTIONS, "image_files"} == set(READABLE)


@pytest.mark.parametrize("state", [f.healthy, f.serving])
@pytest.mark.parametrize("node", ["spark1", "spark2"])
@pytest.mark.parametrize("section", READABLE)
def test_an_unreadable_section_blocks(section: str, node: str, state: Any) -> None:
    plan = spark_plan()
    seen = state(plan)
    seen[node] = f.put(seen[node], section, GONE)
    code = "driver-missing" if section == "gpus" else f"{section.replace('_', '-')}-unreadable"
    found = check(plan, seen)
    named = [v for v in found if (v.code, v.node, v.unknown) == (code, node, True)]
    # One line, however many gates wanted the section.
    assert len(named) == 1
    assert named[0].severity == "block" and named[0].evidence == "permission denied"
    assert "gate-error" not in {v.code for v in found}


@pytest.mark.parametrize("gate", SERVING, ids=lambda gate: gate.__name__)
def test_no_gate_raises_when_nothing_can_be_read(gate: Any) -> None:
    plan = spark_plan()
    blind = f.healthy(plan)
    for node in blind:
        for section in READABLE:
            blind[node] = f.put(blind[node], section, GONE)
    assert "gate-error" not in {v.code for v in check(plan, blind, [gate])}
    assert "gate-error" not in {v.code for v in check(plan, {}, [gate])}


@pytest.mark.parametrize("node", ["spark1", "spark2"])
@pytest.mark.parametrize(("gate", "section"), [
    (driver_equal, "gpus"), (image_present, "docker"), (image_equal, "docker"),
    (weights_equal, "weights"),
])  # fmt: skip
def test_a_gate_that_compares_nodes_says_which_one_it_could_not_read(
    gate: Any, section: str, node: str
) -> None:
    """By itself: a deploy may ask for this gate, and not for the one of all sections."""
    plan = spark_plan()
    seen = f.healthy(plan)
    seen[node] = f.put(seen[node], section, GONE)
    assert [(v.node, v.unknown, v.severity) for v in gate(plan, seen)] == [(node, True, "block")]


def test_nobody_answers() -> None:
    wanted = [("nodes-reachable", "spark1"), ("nodes-reachable", "spark2")]
    for look in (check, examine):
        found = [v for v in look(spark_plan(), {}) if v.severity == "block"]
        assert [(v.code, v.node) for v in found] == wanted
    assert [v.code for gate in DOCTOR for v in gate(spark_plan(), {})] == []


def test_a_gate_that_fails_blocks() -> None:
    @per_node
    def careless(plan: Plan, node: Any, snapshot: NodeSnapshot) -> Any:
        yield from require(snapshot.shm, "shm")[7].mappers

    plan = spark_plan()
    (found,) = check(plan, f.healthy(plan), [careless])
    assert (found.code, found.severity, found.unknown) == ("gate-error", "block", True)
    assert "careless" in found.summary and "IndexError" in found.evidence


def test_a_recipe_without_gpus_asks_for_no_driver() -> None:
    plan = spark_plan(recipe="tiny")
    seen = {name: f.put(s, "gpus", GONE) for name, s in f.healthy(plan).items()}
    assert blocking(check(plan, seen)) == []
