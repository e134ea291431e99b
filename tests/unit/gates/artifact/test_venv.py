"""Gates of an engine in a venv: silent on a healthy tower, one broken piece gives its own code."""

from __future__ import annotations

from typing import Any

import pytest

from gates.artifact.venv import GATES
from gates.core.codes import CODES
from gates.core.violation import Violation
from gates.core.waiver import blocking
from gates.doctor.examine import examine
from gates.doctor.healthy import at_work
from gates.doctor.rank import Finding
from gates.doctor.venvcauses import VENV_CAUSES
from gates.drift.compare import drift, engine_state
from gates.gate_sets import check
from schema.desired.plan import UNIT, Plan
from schema.observed.snapshot import Unreadable
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders import tower_rig as t
from tests.unit.builders.spark_rig import spark_plan

TOWER = t.TOWER
GONE = {"target": None, "python": None, "entry_kind": "absent", "versions": {}}
BROKEN: list[tuple[str, str, Any]] = [
    ("venvs-unreadable", "venvs", Unreadable(unreadable="no answer in 20 s")),
    ("venv-missing", "venvs", ()),
    ("venv-missing", "venvs", (t.venv(**GONE),)),
    ("venv-python-missing", "venvs", (t.venv(python=None),)),
    ("venv-entry-missing", "venvs", (t.venv(entry_kind="absent", entry_executable=False),)),
    ("venv-entry-missing", "venvs", (t.venv(entry_kind="other", entry_executable=False),)),
    ("venv-entry-missing", "venvs", (t.venv(entry_executable=False),)),
    ("venv-entry-missing", "venvs", (t.venv(entry_shebang_exists=False),)),
    ("venv-version", "venvs", (t.venv(versions={"vllm": ("0.31.0+cpu",)}),)),
    ("venv-version", "venvs", (t.venv(versions={"vllm": ("0.31.0+cpu", "0.32.0+cpu")}),)),
    ("venv-version", "venvs", (t.venv(versions={}),)),
    ("venv-user", "venvs", (t.venv(user_exists=False, shm_goes=None),)),
    ("remove-ipc", "venvs", (t.venv(shm_goes=True),)),
    ("disk-room", "disks.3.free", 50 * 1024**2),
    ("memory-short", "memory.available", 2 * 1024**3),
    ("engine-orphan", "engine_processes", (h.process(7, "VLLM::W", **{**t.OWN, "unit": None}),)),
    ("port-taken", "ports", (h.port(8000, process="nginx", unit="nginx.service"),)),
]  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> Plan:
    return t.tower_plan()


def test_a_healthy_and_a_serving_tower_pass_all_gates(plan: Plan) -> None:
    """Without docker, without a fabric, without a peer."""
    assert check(plan, t.healthy(plan)) == []
    assert check(plan, t.serving(plan)) == []
    assert examine(plan, t.serving(plan)) == []


def test_a_rig_of_containers_knows_nothing_of_venvs() -> None:
    spark = spark_plan()
    assert check(spark, f.healthy(spark), GATES) == []


@pytest.mark.parametrize(
    ("code", "path", "value"), BROKEN, ids=[f"{n}-{row[0]}" for n, row in enumerate(BROKEN)]
)
def test_one_broken_value_gives_one_code(plan: Plan, code: str, path: str, value: Any) -> None:
    seen = t.healthy(plan)
    seen[TOWER] = f.put(seen[TOWER], path, value)
    found = check(plan, seen)
    assert {(v.code, v.node) for v in found} == {(code, TOWER)}
    for one in found:
        assert one.severity == CODES[code].severity
        assert "\n" not in one.summary + one.evidence + one.remedy
        assert "docker" not in one.remedy


def test_the_table_breaks_every_code_of_these_gates() -> None:
    assert {code for code, *_ in BROKEN} >= set(VENV_CAUSES)


def test_two_ranks_on_one_host_need_two_caches(plan: Plan) -> None:
    seen = t.healthy(plan)
    for gib, short in ((3, True), (4, False)):
        seen[TOWER] = f.put(seen[TOWER], "memory.available", gib * 1024**3)
        assert bool(check(plan, seen)) is short


def test_a_recipe_without_a_version_takes_any(plan: Plan) -> None:
    venv = plan.recipe.venv
    assert venv is not None
    free = plan.recipe.model_copy(update={"venv": venv.model_copy(update={"version": None})})
    seen = t.healthy(plan)
    seen[TOWER] = f.put(seen[TOWER], "venvs.0.versions", {"vllm": ("9.9",)})
    assert check(Plan(**{**vars(plan), "recipe": free}), seen, GATES) == []


def test_remove_ipc_does_not_stop_a_change_of_a_running_engine(plan: Plan) -> None:
    seen = t.serving(plan)
    seen[TOWER] = f.put(seen[TOWER], "venvs.0.shm_goes", True)
    assert [(v.code, v.severity) for v in check(plan, seen)] == [("remove-ipc", "warn")]


def down(plan: Plan, **unit: Any) -> Any:
    """The tower with its unit in trouble and no engine."""
    seen = t.serving(plan)
    seen[TOWER] = f.put(seen[TOWER], "engine_processes", ())
    seen[TOWER] = f.put(seen[TOWER], "ports", (h.port(22),))
    values = {"active_state": "failed", "sub_state": "failed", "main_pid": None, **unit}
    seen[TOWER] = f.put(seen[TOWER], "units", (h.unit(**values),))
    return seen


def test_exit_127_is_named_by_the_missing_program_and_explains_the_rest(plan: Plan) -> None:
    """B3: the unit's own status says only `not found`."""
    lines = ("serve.sh: line 7: /opt/engine/venv/bin/vllm: No such file or directory",)
    seen = down(plan, exit_status=127, exit_kind="exited", result="exit-code", errors=lines)
    seen[TOWER] = f.put(seen[TOWER], "venvs.0.entry_kind", "absent")
    found: list[Finding] = examine(plan, seen)
    assert found[0].code == "venv-entry-missing"
    assert "script-ghost" not in [v.code for v in found]
    assert f"engine-down@{TOWER}" in found[0].explains
    assert "pip install" in found[0].remedy and "vllm==0.32.0+cpu" in found[0].remedy
    assert "--find-links=/opt/engine/wheels" in found[0].remedy


def test_exit_127_of_a_whole_venv_still_names_the_file(plan: Plan) -> None:
    lines = ("serve.sh: line 7: /opt/engine/venv/bin/vllm: No such file or directory",)
    seen = down(plan, exit_status=127, exit_kind="exited", result="exit-code", errors=lines)
    ghost = next(v for v in examine(plan, seen) if v.code == "script-ghost")
    assert "/opt/engine/venv/bin/vllm" in ghost.summary and "container" not in ghost.summary


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
    seen = t.serving(plan)[TOWER]
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
    seen = t.serving(plan)[TOWER]
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
    seen = t.serving(plan)[TOWER]
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


def test_a_missing_launch_script_is_mended_by_serve(plan: Plan) -> None:
    script = "/etc/rigbook/engine/serve.sh"
    gone = h.unit(
        exec_start=(script,), exec_start_exists=False, fragment=f"/etc/systemd/system/{UNIT}"
    )
    seen = t.healthy(plan)
    seen[TOWER] = f.put(seen[TOWER], "units", (gone,))
    (found,) = check(plan, seen)
    assert (found.code, found.severity) == ("unit-ghost", "warn")
    assert found.remedy == "pyinfra INVENTORY deploys/serve.py"


def test_the_line_about_a_tower_that_is_well(plan: Plan) -> None:
    line = at_work(plan, plan.rig.head, t.serving(plan)[TOWER])
    assert "4 processes" in line and "vllm 0.32.0+cpu" in line and "image" not in line


def test_nothing_of_all_this_blocks_the_seed(plan: Plan) -> None:
    made = t.tower_plan(recipe="qwen3.6-27b")
    seen = t.healthy(made)
    seen[TOWER] = f.put(seen[TOWER], "venvs.0.versions", {"vllm": ("0.19.2rc1",)})
    found: list[Violation] = check(made, seen)
    assert blocking(found) == [], found
