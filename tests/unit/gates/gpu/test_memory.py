"""The memory gate's numbers: unified memory, cards, CPU engines, and our own running engine."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from gates.core.check import GIB
from gates.core.violation import Violation
from gates.gpu.driver import gpus_needed
from gates.gpu.memory import memory_enough
from schema.desired.plan import Plan
from schema.observed.machine import ComputeProcess
from schema.observed.snapshot import NodeSnapshot
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders import tower_rig as tower
from tests.unit.builders.spark_rig import spark_plan

HEAD = "spark1"


def head(plan: Plan, *changes: tuple[str, Any], serving: bool = False) -> list[Violation]:
    """The gate's findings for the head with these values."""
    seen: dict[str, NodeSnapshot] = f.serving(plan) if serving else f.healthy(plan)
    for path, value in changes:
        seen[HEAD] = f.put(seen[HEAD], path, value)
    return [v for v in memory_enough(plan, seen) if v.node == HEAD]


def test_unified_memory_takes_the_ceiling_of_total_times_utilization() -> None:
    plan = spark_plan()
    need = ceil(int(119.67 * GIB) * 0.9)
    changes = (("memory.free", need), ("memory.page_cache", 0))
    assert head(plan, *changes, ("memory.available", need)) == []
    (found,) = head(plan, *changes, ("memory.available", need - 1))
    assert found.code == "memory-short"
    assert "107.70 GiB" in found.summary


def test_the_profiles_utilization_counts() -> None:
    plan = spark_plan()
    flags = {**plan.specs[HEAD].flags, "gpu_memory_utilization": 0.5}
    half = replace(plan, specs={**plan.specs, HEAD: replace(plan.specs[HEAD], flags=flags)})
    low = (("memory.available", 70 * GIB), ("memory.free", 70 * GIB))
    assert head(plan, *low)[0].code == "memory-short"
    assert head(half, *low) == []


@pytest.mark.parametrize(("cache", "helps"), [(100, "would be enough"), (5, "would not be enough")])
def test_evidence_tells_whether_dropping_the_cache_helps(cache: int, helps: str) -> None:
    changes = (
        ("memory.free", 10 * GIB),
        ("memory.available", 30 * GIB),
        ("memory.page_cache", cache * GIB),
    )
    (found,) = head(spark_plan(), *changes)
    assert found.code == "memory-short" and helps in found.evidence
    assert f"page cache {cache}.00 GiB" in found.evidence and "Shmem 0.00 GiB" in found.evidence


def test_stale_page_cache_is_a_warning_with_the_seeds_numbers() -> None:
    changes = (("memory.free", int(4.75 * GIB)), ("memory.page_cache", 110 * GIB))
    (found,) = head(spark_plan(), *changes)
    assert (found.code, found.severity) == ("page-cache", "warn")
    assert "MemFree 4.75 GiB" in found.evidence and "drop_caches" in found.remedy


def test_our_own_running_engine_holds_it_rightly() -> None:
    plan = spark_plan()
    assert head(plan, serving=True) == []
    # A stopped container holds nothing: then the same numbers are short.
    stopped = (("docker.containers.0.state", "exited"), ("engine_processes", ()))
    assert [v.code for v in head(plan, *stopped, serving=True)] == ["memory-short"]


def test_a_card_needs_free_memory_and_its_holders_are_named() -> None:
    plan = spark_plan()
    holder = ComputeProcess(
        gpu_uuid="GPU-0",
        pid=4711,
        process_name="VLLM::EngineCore",
        used_mib=15000,
        start_ticks=None,
        container_id=None,
    )
    need = ceil(16311 * 0.9)
    assert head(plan, ("gpus.gpus", (h.discrete_gpu(0, need),))) == []
    short = (("gpus.gpus", (h.discrete_gpu(0, need - 1),)), ("gpus.processes", (holder,)))
    (found,) = head(plan, *short)
    assert found.code == "memory-short" and "pid 4711 VLLM::EngineCore 15000 MiB" in found.evidence
    (found,) = head(plan, short[0])
    assert "no listed process" in found.evidence and "reboot spark1" in found.remedy


def test_every_card_that_the_ranks_use_counts() -> None:
    plan = tower.tower_plan(recipe="qwen3.6-27b")
    assert plan.specs[tower.TOWER].flags["tensor_parallel_size"] == 2
    seen = tower.healthy(plan)
    assert memory_enough(plan, seen) == []
    cards = (h.discrete_gpu(0, 16311), h.discrete_gpu(1, 400))
    (found,) = memory_enough(plan, {tower.TOWER: f.put(seen[tower.TOWER], "gpus.gpus", cards)})
    assert found.code == "memory-short" and "GPU 1 of tower1" in found.summary


@pytest.mark.parametrize(("tp", "pp", "gpus"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (2, 2, 2)])
def test_ranks_are_spread_over_the_nodes_and_none_is_lost(tp: int, pp: int, gpus: int) -> None:
    plan = spark_plan()
    ranks = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    spec = replace(plan.specs[HEAD], flags={**plan.specs[HEAD].flags, **ranks})
    wide = replace(plan, specs={**plan.specs, HEAD: spec})
    assert gpus_needed(wide, plan.rig.head) == gpus


def test_dirty_pages_cannot_be_dropped() -> None:
    changes = (
        ("memory.free", 10 * GIB),
        ("memory.available", 30 * GIB),
        ("memory.page_cache", 100 * GIB),
        ("memory.dirty", 90 * GIB),
    )
    (found,) = head(spark_plan(), *changes)
    assert "would not be enough" in found.evidence


def test_only_the_cards_that_the_ranks_use_count() -> None:
    cards = (h.discrete_gpu(0, 16000), h.discrete_gpu(1, 10))
    assert head(spark_plan(), ("gpus.gpus", cards)) == []


def test_a_card_that_does_not_report_its_memory_is_unknown() -> None:
    (found,) = head(spark_plan(), ("gpus.gpus", (h.discrete_gpu(0, None),)))
    assert (found.code, found.unknown, found.severity) == ("memory-short", True, "block")


def test_a_cpu_engine_needs_its_cache_and_a_floor() -> None:
    plan = spark_plan(recipe="tiny")  # VLLM_CPU_KVCACHE_SPACE=1
    assert head(plan, ("memory.available", 3 * GIB), ("memory.free", GIB)) == []
    (found,) = head(plan, ("memory.available", 3 * GIB - 1))
    assert found.code == "memory-short" and "needs 3.00 GiB" in found.summary
