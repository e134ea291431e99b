"""Gates of an engine in a venv: silent on a healthy tower, one broken piece gives its own code."""

from __future__ import annotations

from typing import Any

import pytest

from gates.artifact.venv import GATES
from gates.doctor.healthy import healthy_line
from gates.drift.compare import drift, engine_state
from gates.gate_sets import check
from schema.desired.plan import Plan
from schema.observed.snapshot import Unreadable
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders import tower_rig as t
from tests.unit.builders.spark_rig import spark_plan

TOWER = t.TOWER


@pytest.fixture(scope="module")
def plan() -> Plan:
    return t.tower_plan()


def test_a_rig_of_containers_knows_nothing_of_venvs() -> None:
    spark = spark_plan()
    assert check(spark, f.healthy(spark), GATES) == []


def test_a_recipe_without_a_version_takes_any(plan: Plan) -> None:
    venv = plan.recipe.venv
    assert venv is not None
    free = plan.recipe.model_copy(update={"venv": venv.model_copy(update={"version": None})})
    seen = t.healthy(plan)
    seen[TOWER] = f.put(seen[TOWER], "venvs.0.versions", {"vllm": ("9.9",)})
    assert check(Plan(**{**vars(plan), "recipe": free}), seen, GATES) == []


def down(plan: Plan, **unit: Any) -> Any:
    """The tower with its unit in trouble and no engine."""
    seen = t.serving(plan)
    seen[TOWER] = f.put(seen[TOWER], "engine_processes", ())
    seen[TOWER] = f.put(seen[TOWER], "ports", (h.port(22),))
    values = {"active_state": "failed", "sub_state": "failed", "main_pid": None, **unit}
    seen[TOWER] = f.put(seen[TOWER], "units", (h.unit(**values),))
    return seen


@pytest.mark.parametrize(
    ("unit", "processes", "state"),
    [
        ({}, True, "running"),
        ({"active_state": "activating", "sub_state": "start-post"}, True, "starting"),
        ({}, False, "starting"),
        ({"active_state": "inactive", "sub_state": "dead"}, False, "stopped"),
        ({"active_state": "failed", "sub_state": "failed"}, False, "failed"),
        ({"active_state": "activating", "sub_state": "auto-restart"}, False, "failed"),
        ({"load_state": "not-found"}, False, "absent"),
    ],
)
def test_the_state_follows_unit_and_processes(
    plan: Plan, unit: dict[str, Any], processes: bool, state: str
) -> None:
    seen: Any = t.serving(plan)[TOWER]
    seen = f.put(seen, "units", (h.unit(**unit),))
    if not processes:
        seen = f.put(f.put(seen, "engine_processes", ()), "ports", ())
    assert engine_state(plan, plan.rig.head, seen) == state


def test_unknown_processes_are_no_running_engine(plan: Plan) -> None:
    seen = f.put(t.serving(plan)[TOWER], "engine_processes", Unreadable(unreadable="denied"))
    assert engine_state(plan, plan.rig.head, seen) == "failed"


def texts(plan: Plan, seen: Any) -> list[str]:
    """What has drifted on the tower."""
    return [d.text for d in drift(plan, plan.rig.head, seen)]


def test_drift_of_the_live_engine(plan: Plan) -> None:
    seen: Any = t.serving(plan)[TOWER]
    assert texts(plan, seen) == []
    argv = [*seen.engine_processes[0].argv, "--max-num-seqs", "9"]
    moved = f.put(seen, "engine_processes.0.argv", tuple(argv))
    assert texts(plan, moved) == ["max_num_seqs 9, recipe says 4"]
    environ = {**seen.engine_processes[0].environ, "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    forked = f.put(seen, "engine_processes.0.environ", environ)
    assert ["VLLM_WORKER_MULTIPROC_METHOD=fork is forbidden" in x for x in texts(plan, forked)] == [
        True
    ]


def test_an_engine_of_the_former_venv_has_drifted(plan: Plan) -> None:
    """The link was moved on; what serves is the old version."""
    seen: Any = t.serving(plan)[TOWER]
    moved = f.put(seen, "venvs.0.target", "/opt/engine/venvs/0.33.0")
    (found,) = texts(plan, moved)
    assert "/opt/engine/venvs/0.33.0" in found and "/opt/engine/venvs/0.32.0/bin/python" in found
    argv = list(seen.engine_processes[0].argv)
    argv[1] = "/srv/other/bin/vllm"
    (found,) = texts(plan, f.put(seen, "engine_processes.0.argv", tuple(argv)))
    assert "/srv/other/bin/vllm" in found


def test_a_stopped_engine_is_compared_by_its_files(plan: Plan) -> None:
    seen = down(plan)[TOWER]
    assert texts(plan, seen) == []
    script = seen.files[0]
    other = script.content.replace("--max-num-seqs 4", "--max-num-seqs 7")
    assert "max_num_seqs 7, recipe says 4" in texts(plan, f.put(seen, "files.0.content", other))


def test_the_line_about_a_tower_that_is_well(plan: Plan) -> None:
    line = healthy_line(plan, plan.rig.head, t.serving(plan)[TOWER])
    assert "4 processes" in line and "vllm 0.32.0+cpu" in line and "image" not in line
