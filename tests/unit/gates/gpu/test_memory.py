"""How the plan's flags count for memory and cards; the numbers: cases/memory.yaml."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gates.core.check import GIB
from gates.gpu.driver import gpus_needed
from gates.gpu.memory import memory_enough
from schema.desired.plan import Plan
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

HEAD = "spark1"


def test_the_profiles_utilization_counts() -> None:
    plan = spark_plan()
    flags = {**plan.specs[HEAD].flags, "gpu_memory_utilization": 0.5}
    half = replace(plan, specs={**plan.specs, HEAD: replace(plan.specs[HEAD], flags=flags)})

    def codes(plan: Plan) -> list[str]:
        seen = f.healthy(plan)
        for path in ("memory.available", "memory.free"):
            seen[HEAD] = f.put(seen[HEAD], path, 70 * GIB)
        return [v.code for v in memory_enough(plan, seen) if v.node == HEAD]

    assert codes(plan) == ["memory-short"] and codes(half) == []


@pytest.mark.parametrize(("tp", "pp", "gpus"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (2, 2, 2)])
def test_ranks_are_spread_over_the_nodes_and_none_is_lost(tp: int, pp: int, gpus: int) -> None:
    plan = spark_plan()
    ranks = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    spec = replace(plan.specs[HEAD], flags={**plan.specs[HEAD].flags, **ranks})
    wide = replace(plan, specs={**plan.specs, HEAD: spec})
    assert gpus_needed(wide, plan.rig.head) == gpus
