"""A pair of which one half is gone while every unit runs."""

from __future__ import annotations

from typing import Any

import pytest

from gates.core.check import GIB
from gates.doctor.examine import examine
from gates.doctor.rank import Finding
from schema.observed.network import Connection
from tests.unit.builders import engine_parts as e
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

PLAN = spark_plan()
HEAD, WORKER = "spark1", "spark2"


def joined(node: str) -> tuple[Connection, ...]:
    found = f.serving(PLAN)[node].connections
    assert isinstance(found, tuple)
    return found


def wedged(*changes: tuple[str, str, Any]) -> list[Finding]:
    seen = f.serving(PLAN)
    for node, path, value in changes:
        seen[node] = f.put(seen[node], path, value)
    return [v for v in examine(PLAN, seen) if v.code == "wedged-pair"]


def test_a_joined_pair_is_whole() -> None:
    assert {c.peer_port for c in joined(WORKER)} > {29501} and wedged() == []
    # One side's view is enough: the other's may have been taken a moment later.
    assert wedged((HEAD, "connections", ())) == []
    assert wedged((WORKER, "connections", ())) == []


def test_no_connection_with_the_rendezvous() -> None:
    (one,) = wedged((HEAD, "connections", ()), (WORKER, "connections", ()))
    assert (one.node, one.severity) == (HEAD, "block")
    assert "no ESTABLISHED connection of spark2 with the rendezvous (port 29501)" in one.summary
    assert "restart.py" in one.remedy and "spark2 600 s" in one.evidence


def test_connections_of_others_do_not_count() -> None:
    other = {node: tuple(c.model_copy(update={"container_id": e.FOREIGN}) for c in joined(node))
             for node in (HEAD, WORKER)}  # fmt: skip
    assert wedged(*((node, "connections", rows) for node, rows in other.items()))
    lan = (h.connection("192.168.1.12", 39000, "192.168.1.11", 29501),)
    assert wedged((HEAD, "connections", ()), (WORKER, "connections", lan)) == []


def test_a_worker_that_came_back_alone_waits_at_the_rendezvous() -> None:
    only = {node: tuple(c for c in joined(node) if 29501 in (c.local_port, c.peer_port))
            for node in (HEAD, WORKER)}  # fmt: skip
    rows = [(node, "connections", kept) for node, kept in only.items()]
    assert wedged(*rows) == []
    (one,) = wedged(*rows, (WORKER, "units.0.since_unix_s", h.NOW - 20))
    assert "spark2 started after the head" in one.summary


@pytest.mark.parametrize("node", [HEAD, WORKER])
def test_a_rank_that_is_gone(node: str) -> None:
    (one,) = wedged((node, "engine_processes", (h.process(910, "vllm", "serve"),)))
    assert f"no rank lives on {node}" in one.summary


def test_a_worker_that_is_down_under_a_head_that_serves() -> None:
    seen = f.serving(PLAN)
    failed = h.unit(active_state="failed", sub_state="failed", result="exit-code", exit_status=137)
    for path, value in (("units.0", failed), ("docker.containers", ()), ("connections", ()),
                        ("engine_processes", ()), ("memory.available", 114 * GIB)):  # fmt: skip
        seen[WORKER] = f.put(seen[WORKER], path, value)
    found = {v.code: v for v in examine(PLAN, seen) if v.severity == "block"}
    assert list(found) == ["engine-down", "wedged-pair"]
    assert found["engine-down"].node == WORKER and "kill -9" in found["engine-down"].cause
    assert found["engine-down"].explains == ("wedged-pair@spark1",)
    assert found["wedged-pair"].explained_by == ("engine-down@spark2",)


def test_a_head_that_still_loads_is_not_wedged() -> None:
    gone = [(node, "connections", ()) for node in (HEAD, WORKER)]
    assert wedged(*gone, (HEAD, "ports", ())) == []


def test_a_worker_that_is_younger_and_joined_is_whole() -> None:
    """After a power cut of both nodes the head may well start first, and wait."""
    assert wedged((WORKER, "units.0.since_unix_s", h.NOW - 20)) == []
