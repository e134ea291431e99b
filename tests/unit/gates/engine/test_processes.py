"""Gates of processes and ports: who is an orphan, and who holds a port."""

from __future__ import annotations

import pytest

from gates.engine.processes import engine_orphan
from gates.engine.state import same_container
from schema.desired.plan import UNIT, Plan
from schema.observed.snapshot import Unreadable
from tests.unit.builders import engine_parts as e
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

HEAD, WORKER = "spark1", "spark2"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return spark_plan()


def test_a_foreign_engine_under_a_live_supervisor_is_no_orphan(plan: Plan) -> None:
    seen = f.healthy(plan)
    other = h.process(77, "VLLM::EngineCore", container_id=e.FOREIGN)
    seen[HEAD] = f.put(seen[HEAD], "engine_processes", (other,))
    live = f.put(seen[HEAD], "docker.containers", (e.foreign_container(),))
    assert f.beyond_usual(plan, {**seen, HEAD: live}) == []
    for state in ("paused", "restarting"):
        held = f.put(seen[HEAD], "docker.containers", (e.foreign_container(state=state),))
        assert f.beyond_usual(plan, {**seen, HEAD: held}) == []
    dead = f.put(seen[HEAD], "docker.containers", (e.foreign_container(state="exited"),))
    (found,) = f.beyond_usual(plan, {**seen, HEAD: dead})
    assert found.code == "engine-orphan" and "vllm_ds4 is exited" in found.evidence


def test_without_dockers_word_nobody_is_called_an_orphan(plan: Plan) -> None:
    """The finding is that docker is silent; a process of an unknown container may be served."""
    seen = f.serving(plan)
    seen[HEAD] = f.put(seen[HEAD], "docker", Unreadable(unreadable="no answer in 20 s"))
    assert engine_orphan(plan, seen) == []


@pytest.mark.parametrize(("one", "other", "same"), [
    (e.FOREIGN, e.FOREIGN[:12], True),
    (e.FOREIGN[:12], e.FOREIGN, True),
    (e.FOREIGN, h.OURS, False),
    # A process without a container is of none; eleven digits are no id that docker gives.
    ("", e.FOREIGN, False),
    (e.FOREIGN[:11], e.FOREIGN, False),
])  # fmt: skip
def test_ids_of_one_container(one: str, other: str, same: bool) -> None:
    assert same_container(one, other) is same


@pytest.mark.parametrize(("unit", "orphan"), [("my-llm.service", False), (UNIT, True)])
def test_a_process_outlives_its_unit(plan: Plan, unit: str, orphan: bool) -> None:
    seen = f.healthy(plan)
    left = h.process(77, "VLLM::Worker", container_id=None, unit=unit)
    failed = h.unit(active_state="failed", sub_state="failed")
    seen[HEAD] = f.put(f.put(seen[HEAD], "engine_processes", (left,)), "units", (failed,))
    assert ("engine-orphan" in {v.code for v in f.beyond_usual(plan, seen)}) is orphan


def test_port_names_its_holder(plan: Plan) -> None:
    seen = f.healthy(plan)
    held = h.port(29501, pid=77, process="VLLM::EngineCor", unit=None, container_id=e.FOREIGN)
    seen[HEAD] = f.put(seen[HEAD], "ports", (held,))
    seen[HEAD] = f.put(seen[HEAD], "docker.containers", (e.foreign_container(),))
    (found,) = f.beyond_usual(plan, seen)
    assert "pid 77" in found.evidence and "vllm_ds4" in found.evidence
    assert f"docker stop {e.FOREIGN[:12]}" in found.remedy


def test_a_workers_port_8000_is_its_own_affair(plan: Plan) -> None:
    seen = f.healthy(plan)
    seen[WORKER] = f.put(seen[WORKER], "ports", (h.port(8000, process="nginx"),))
    assert f.beyond_usual(plan, seen) == []
