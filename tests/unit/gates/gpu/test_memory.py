"""How the plan's flags count for memory and cards; the numbers: cases/memory.yaml."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gates.core.check import GIB
from gates.gpu.driver import gpus_needed
from gates.gpu.memory import cards_after, memory_enough
from node.rules.memory_need import CONTEXT_MIB
from schema.desired.plan import Plan
from schema.observed.machine import ComputeProcess
from schema.observed.snapshot import Unreadable
from tests.unit.builders import snapshots as f
from tests.unit.builders.host_parts import discrete_gpu
from tests.unit.builders.spark_rig import spark_plan

HEAD = "spark1"


def _with_flags(**flags: object) -> Plan:
    """The Sparks' plan with these flags on its head."""
    plan = spark_plan()
    spec = replace(plan.specs[HEAD], flags={**plan.specs[HEAD].flags, **flags})
    return replace(plan, specs={**plan.specs, HEAD: spec})


def test_the_profiles_utilization_counts() -> None:
    plan, half = spark_plan(), _with_flags(gpu_memory_utilization=0.5)

    def codes(plan: Plan) -> list[str]:
        seen = f.healthy(plan)
        for path in ("memory.available", "memory.free"):
            seen[HEAD] = f.put(seen[HEAD], path, 70 * GIB)
        return [v.code for v in memory_enough(plan, seen) if v.node == HEAD]

    assert codes(plan) == ["memory-short"] and codes(half) == []


@pytest.mark.parametrize(
    ("share", "free", "says"),
    [
        (0.9, 143155, None),
        # an empty card was refused at 0.996: 616 MiB of it are the driver's
        (0.997, 143155, ("warn", "needed 142726 MiB", "0.99")),
        # what the gate let pass and vLLM refused
        (0.3, 43300, ("warn", "needed 42947 MiB", "0.29")),
        (0.3, 42946, ("block", "needed 42947 MiB", "reboot spark1")),
        (0.3, 42947 + CONTEXT_MIB, None),
    ],
)
def test_a_cards_share_is_of_what_cuda_calls_its_total(
    share: float, free: int, says: tuple[str, str, str] | None
) -> None:
    """An H200's numbers (driver 580.159.04, 2026-11-22): 143771 MiB, of which CUDA sees 143155."""
    plan = _with_flags(gpu_memory_utilization=share)
    seen = f.healthy(plan)
    card = discrete_gpu(0, free, 143771).model_copy(update={"memory_used_mib": 143155 - free})
    seen[HEAD] = f.put(seen[HEAD], "gpus.gpus", (card,))
    found = [v for v in memory_enough(plan, seen) if v.node == HEAD]
    assert len(found) == (says is not None)
    if says is not None:
        severity, evidence, remedy = says
        assert found[0].severity == severity
        assert evidence in found[0].evidence and remedy in found[0].remedy


def _holder(pid: int, name: str, mib: int) -> ComputeProcess:
    return ComputeProcess(gpu_uuid="GPU-0", pid=pid, process_name=name, used_mib=mib,
                          start_ticks=1, container_id=None)  # fmt: skip


@pytest.mark.parametrize(
    ("ended", "codes", "left"),
    [
        ({HEAD: {77}}, [], None),
        # what is not ended stays, and is named; our own engine's memory comes back
        ({}, ["memory-short"], "held by: pid 77 python3 15000 MiB"),
        ({"spark2": {77}}, ["memory-short"], "sudo kill 77"),
    ],
)
def test_a_restart_counts_what_it_ends(
    ended: dict[str, set[int]], codes: list[str], left: str | None
) -> None:
    plan = spark_plan()
    seen = f.serving(plan)
    engines = seen[HEAD].engine_processes
    assert not isinstance(engines, Unreadable)
    own = engines[0]
    holders = (
        _holder(77, "python3", 15000),
        _holder(own.pid, "VLLM::EngineCore", 1000),
    )
    seen[HEAD] = f.put(seen[HEAD], "gpus.gpus", (discrete_gpu(0, 311),))
    seen[HEAD] = f.put(seen[HEAD], "gpus.processes", holders)
    found = [v for v in cards_after(ended)(plan, seen) if v.node == HEAD]
    assert [v.code for v in found] == codes
    assert all(f"pid {own.pid} " not in v.evidence for v in found)
    assert left is None or left in found[0].evidence + found[0].remedy


def test_a_restart_that_cannot_see_who_computes_is_refused() -> None:
    plan = spark_plan()
    seen = f.serving(plan)
    seen[HEAD] = f.put(seen[HEAD], "gpus", Unreadable(unreadable="no answer"))
    assert any(v.unknown for v in cards_after({})(plan, seen))


@pytest.mark.parametrize(("tp", "pp", "gpus"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (2, 2, 2)])
def test_ranks_are_spread_over_the_nodes_and_none_is_lost(tp: int, pp: int, gpus: int) -> None:
    wide = _with_flags(tensor_parallel_size=tp, pipeline_parallel_size=pp)
    assert gpus_needed(wide, wide.rig.head) == gpus
