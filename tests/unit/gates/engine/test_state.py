"""How a node's engine is doing, from its unit, its container and its port."""

from __future__ import annotations

from typing import Any

from gates.engine.state import engine_state
from schema.observed.snapshot import Unreadable
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

PLAN = spark_plan()
HEAD, WORKER = PLAN.rig.nodes


def state(*changes: tuple[str, Any], node: Any = HEAD, up: bool = True) -> str:
    seen = (f.serving if up else f.healthy)(PLAN)[node.name]
    for path, value in changes:
        seen = f.put(seen, path, value)
    return engine_state(PLAN, node, seen)


def test_engine_state() -> None:
    gone = ("docker.containers", ())
    inactive = ("units.0.active_state", "inactive")
    assert state(up=False) == "absent"
    assert state() == "running"
    assert state(node=WORKER) == "running"
    assert state(gone, inactive) == "stopped"
    assert state(("ports", ())) == "starting"
    assert state(("ports", ()), node=WORKER) == "running"
    assert state(gone) == "starting"
    assert state(("units.0.active_state", "activating")) == "starting"
    assert state(("units.0.active_state", "failed"), gone) == "failed"
    assert state(gone, ("units.0.active_state", "activating"),
                 ("units.0.sub_state", "auto-restart")) == "failed"  # fmt: skip
    assert state(("units", Unreadable(unreadable="x"))) == "failed"
    assert state(inactive) == "running"
