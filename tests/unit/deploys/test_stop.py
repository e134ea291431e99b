"""What stop says of a node that it could not see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra.api.exceptions import DeployError

from deploys.procedures.engine import stop
from operations.change.node_call import StepFailed
from schema.observed.machine import ShmSegment
from schema.observed.snapshot import NodeSnapshot, Unreadable
from tests.plans.support.scenario import WORKER, tiny_plan
from tests.unit.builders.snapshots import healthy, put

PLAN = tiny_plan()


def blind() -> dict[str, NodeSnapshot]:
    """Stopped, and of the worker neither docker, processes nor ports can be read."""
    seen, why = dict(healthy(PLAN)), Unreadable(unreadable="timed out")
    for section in ("docker", "engine_processes", "ports"):
        seen[WORKER] = put(seen[WORKER], section, why)
    return seen


UNSEEN = f"{WORKER}: docker not readable: timed out, processes not readable: timed out, ports not"


def test_what_was_not_seen_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "observe", lambda *_, **__: blind())
    monkeypatch.setattr(stop, "SETTLE_S", -1.0)
    closed: list[Any] = []
    rig: Any = SimpleNamespace(plan=PLAN, run=SimpleNamespace(close=lambda *a: closed.append(a)))
    with pytest.raises(StepFailed, match=UNSEEN):
        stop.verify(rig)
    assert UNSEEN in closed[0][1]


def test_no_change_is_not_said_of_a_node_that_was_not_seen() -> None:
    refuse: Any = stop.refuse_survivors
    rig: Any = SimpleNamespace(plan=PLAN, up=SimpleNamespace(all=()), snapshots=blind())
    with pytest.raises(DeployError, match=f"nothing was changed: .*{UNSEEN}"):
        refuse.__wrapped__(rig)


def test_a_segment_that_nobody_maps_is_left_over() -> None:
    segment = ShmSegment(name="psm_87eda3f8", size=1, uid=0, inode=7, mtime=1.0, mappers=())
    seen = put(healthy(PLAN)[WORKER], "shm", (segment,))
    assert stop.left_over(PLAN, seen) == ["/dev/shm/psm_87eda3f8"]
