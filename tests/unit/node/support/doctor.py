"""What the doctor's gates, all of them, say of a host's health."""

from __future__ import annotations

from typing import Any

from gates.doctor.examine import examine
from schema.observed.health import Health
from schema.observed.snapshot import NodeSnapshot
from tests.unit.builders import snapshots
from tests.unit.builders.spark_rig import spark_plan


def found_with(health: Health) -> list[tuple[str, str | None]]:
    """What the doctor says of the Spark pair when its head's health is this."""
    plan = spark_plan()
    seen: dict[str, Any] = dict(snapshots.serving(plan))
    usual = {(v.code, v.node) for v in examine(plan, seen)}
    seen["spark1"] = snapshots.put(seen["spark1"], "health", health)
    assert isinstance(seen["spark1"], NodeSnapshot)
    return [(v.code, v.node) for v in examine(plan, seen) if (v.code, v.node) not in usual]
