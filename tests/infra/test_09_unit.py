"""Unit layer: systemd starts the engine at boot, from files that are there."""

from __future__ import annotations

import pytest
from testinfra.host import Host

from gates.engine.state import engine_unit
from gates.unit import ghost as gates
from schema.desired.plan import UNIT
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from schema.observed.units import Unit
from tests.infra.observe import Observation, as_planned, expect, known, no_findings, serve
from tests.infra.plugin import Rig


def _unit(rig: Rig, node: Node, snapshot: NodeSnapshot) -> Unit:
    """Our unit; the test fails where systemd does not know it."""
    known(snapshot.units, node, "units")
    unit = engine_unit(snapshot)
    expect(unit is not None, node, f"{UNIT} does not exist", "enabled and active", serve(rig))
    assert unit is not None
    return unit


def story(unit: Unit) -> str:
    """How a unit is doing, in one line."""
    return (
        f"{unit.active_state} ({unit.sub_state}), {unit.restarts} restarts, result {unit.result}, "
        f"last exit status {unit.exit_status}, last line: {unit.last_log_line or 'none'}"
    )


def test_unit_enabled_and_active(rig: Rig, node: Node, host: Host, snapshot: NodeSnapshot) -> None:
    """Now, and after the next boot."""
    unit = _unit(rig, node, snapshot)
    service = host.service(UNIT)
    expect(service.is_enabled, node, f"{UNIT} is {unit.enabled}", "enabled", serve(rig))
    active = unit.active_state == "active" and service.is_running
    expect(active, node, f"{UNIT} is {story(unit)}", "active (running)", serve(rig))


def test_unit_starts_a_program_that_exists(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """A ghost: exit status 127 or 203 every few seconds, for days."""
    unit = _unit(rig, node, snapshot)
    no_findings(rig, observation, [gates.unit_ghost], node, warn=True)
    if unit.exec_start_exists is None:
        pytest.fail(f"{node.name}: whether {unit.exec_start} exists is unknown", pytrace=False)


def test_unit_is_loaded_as_it_stands_on_disk(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """No pending daemon-reload, no drop-in of somebody else."""
    _unit(rig, node, snapshot)
    as_planned(rig, node, snapshot, frozenset({"unit", "unknown"}))
