"""The engine's start as systemd and node see it: waits, limits, node.json, the pair check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gates.gpu import memory
from gates.gpu.driver import gpus_needed
from node.engine import peer_watchdog, prelaunch
from node.engine.config import parse
from schema.core.errors import SpecError
from schema.inputs.load import plan as plan_of
from schema.render import node_program
from schema.render.start_budget import FABRIC_WAIT_S, MARGIN_S
from tests.unit.builders.engine_files import unit_lines
from tests.unit.builders.spark_rig import changed, host, project, spark_plan


def test_only_the_heads_start_waits_for_an_answer() -> None:
    head, worker = (unit_lines(spark_plan().documents[n][2]) for n in ("spark1", "spark2"))
    for lines in (head, worker):
        assert ("ExecStartPre", f"{node_program.path()} prelaunch") in lines
        # in this order, the first without "-": where it fails, systemd skips the second
        assert [value for key, value in lines if key == "ExecStopPost"] == [
            "/usr/bin/systemctl -q is-active docker.service",
            f"-{node_program.path()} container remove",
        ]
        assert not any("docker rm" in value or "sh -c" in value for _, value in lines)
    assert ("ExecStartPost", f"{node_program.path()} answer") in head
    assert "ExecStartPost" not in dict(worker)


@pytest.mark.parametrize("recipe", ["deepseek-v4-flash", "tiny"])
@pytest.mark.parametrize("node", ["spark1", "spark2"])
def test_start_limit_outlasts_three_starts_that_fail_late(recipe: str, node: str) -> None:
    """The latest failure: all waits, the whole budget, then both stop phases and the pause."""
    plan = spark_plan(recipe=recipe)
    unit = dict(unit_lines(plan.documents[node][2]))
    latest = int(unit["TimeoutStartSec"]) + 2 * int(unit["TimeoutStopSec"])
    starts = int(unit["StartLimitBurst"])
    window = int(unit["StartLimitIntervalSec"])
    assert window > starts * (latest + int(unit["RestartSec"]))
    budget = plan.recipe.expect.start_budget_s
    waits = prelaunch.DOCKER_WAIT_S + prelaunch.MEMORY_WAIT_S + FABRIC_WAIT_S
    # the head waits for its peers before, and for its own answer after
    phases = 2 * budget if node == "spark1" else budget
    assert int(unit["TimeoutStartSec"]) >= waits + phases + MARGIN_S


def test_a_worker_comes_back_after_its_head_has_seen_it_gone() -> None:
    """Sooner, it would join the head that is about to be restarted."""
    worker = dict(unit_lines(spark_plan().documents["spark2"][2]))
    timer = dict(unit_lines(spark_plan().documents["spark1"][5]))
    looks = (peer_watchdog.MISSES + 1) * (int(timer["OnUnitActiveSec"]) - 1)
    assert int(worker["RestartSec"]) > looks - int(timer["OnUnitActiveSec"])
    assert int(worker["RestartSec"]) > peer_watchdog.BROKEN_S + int(timer["OnUnitActiveSec"])


@pytest.mark.parametrize("recipe", ["deepseek-v4-flash", "tiny"])
def test_node_reads_the_file_that_is_rendered(recipe: str) -> None:
    plan = spark_plan(recipe=recipe)
    for node in plan.rig.nodes:
        file = plan.documents[node.name][3]
        assert (file.path, file.mode) == ("/etc/rigbook/engine/node.json", "0644")
        engine = parse(json.loads(file.content))
        assert (engine.role, engine.rank, engine.node) == (node.role, node.rank, node.name)
        assert engine.fabric is not None and engine.fabric.address == str(node.fabric_address)
        assert engine.master == ("10.0.0.1", 29501)
        assert (engine.endpoint is None) == (node.role == "worker")
        assert engine.start_budget_s == plan.recipe.expect.start_budget_s
        assert not any(value in file.content for value in plan.specs[node.name].environ.values()
                       if len(value) > 12)  # fmt: skip
    head = parse(json.loads(plan.documents["spark1"][3].content))
    assert head.endpoint is not None and head.endpoint.url == "http://192.168.1.11:8000"
    assert (head.peers, head.ports) == (("10.0.0.2",), (8000, 29501))


def test_node_and_gates_ask_for_the_same_memory() -> None:
    """The rule stands in both, because node may not import gates."""
    for recipe in ("deepseek-v4-flash", "tiny"):
        plan = spark_plan(recipe=recipe)
        node = plan.rig.head
        need = parse(json.loads(plan.documents[node.name][3].content)).memory
        assert need.gpu_memory_utilization == memory.utilization(plan, node)
        if plan.recipe.expect.needs_nvidia:
            assert need.gpus == gpus_needed(plan, node)
        else:
            assert need.cpu_bytes == memory._cpu_need(plan, node)


@pytest.mark.parametrize("value", ["much", 1.5, 0, -1])
def test_a_memory_share_that_is_none_is_refused(tmp_path: Path, value: object) -> None:
    recipe = changed(("vllm_serve", "gpu_memory_utilization"), value)
    with pytest.raises(SpecError, match="gpu_memory_utilization"):
        spark_plan(project(tmp_path, recipe), recipe="broken")


def test_a_rig_of_one_node_has_no_pair_to_check(tmp_path: Path) -> None:
    data = changed(("vllm_serve", "tensor_parallel_size"), 1)
    del data["multi_node"]
    data["env"] = {}
    alone = plan_of({"spark1": host(1, recipe="broken")}, None, project(tmp_path, data))
    files = alone.documents["spark1"]
    assert len(files) == 4
    engine = parse(json.loads(files[3].content))
    assert (engine.fabric, engine.master, engine.peers) == (None, None, ())
    assert alone.requests["spark1"].units == ("rigbook-engine.service",)


def test_the_pair_check_is_quiet_and_runs_by_its_timer() -> None:
    service, timer = (dict(unit_lines(d)) for d in spark_plan().documents["spark2"][4:])
    assert service["ExecStart"] == f"{node_program.path()} pair"
    assert (service["Type"], service["LogLevelMax"]) == ("oneshot", "notice")
    assert (timer["OnUnitActiveSec"], timer["WantedBy"]) == ("15", "timers.target")
