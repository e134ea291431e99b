"""The same deploys on a rig of one node whose engine lives in a venv: no docker, no pair."""

from __future__ import annotations

import re
from typing import Any

import pytest

from schema.desired.plan import Plan
from tests.plans.support.engine_double import Reply
from tests.plans.support.scenario import Runs, Scenario, Snapshots
from tests.unit.builders import tower_rig as t
from tests.unit.builders.host_parts import change
from tests.unit.builders.snapshots import put

NAME = "@fake/tower1"
DIED = {f"{NAME}:start": "dies"}
OPEN_ID = "20260530T065800Z-serve-1a2b"


def hosts(address: str) -> list[Any]:
    """The one host of the rig, at the address of the engine's double."""
    data = t.tower_data(lan_address=address)
    del data["ssh_hostname"]
    return [(NAME, data)]


def made(plan: Plan) -> Plan:
    """The tower's plan at the address of this run."""
    return t.tower_plan(name=NAME, lan_address=str(plan.rig.head.lan_address))


def fresh(plan: Plan) -> Snapshots:
    """Ready, never served."""
    return t.healthy(made(plan))


def serves(plan: Plan) -> Snapshots:
    """Serving as the recipe says."""
    return t.serving(made(plan))


def no_entry(plan: Plan) -> Snapshots:
    """bin/vllm is gone (B3)."""
    return {NAME: put(fresh(plan)[NAME], "venvs.0.entry_kind", "absent")}


def half_done(plan: Plan) -> Snapshots:
    """A serve that was killed in the middle."""
    return {NAME: put(serves(plan)[NAME], "journal.changes", (change("OPEN", id=OPEN_ID),))}


def scenario(deploy: str, *words: str, **values: Any) -> Scenario:
    """A deploy on the tower."""
    return Scenario((f"deploys/{deploy}.py", *words), hosts=hosts, **values)


SCENARIOS = {
    "dry": scenario("serve", "--dry", "--diff", seen=fresh),
    "fresh": scenario("serve", "-y", seen=fresh, answers=Reply),
    "as it should": scenario("serve", "-y", seen=serves, answers=Reply),
    "profile": scenario("serve", "-y", "--data", "profile=single", seen=serves, answers=Reply),
    "dies": scenario("serve", "-y", seen=fresh, answers=Reply, faults=DIED),
    "no entry": scenario("serve", "-y", seen=no_entry, answers=Reply),
    "stop": scenario("stop", "-y", seen=serves, answers=Reply),
    "stopped": scenario("stop", "-y", seen=fresh),
    "doctor": scenario("doctor", "-y", seen=serves, answers=Reply),
    "doctor 127": scenario("doctor", "-y", seen=no_entry),
    "verify": scenario("verify", "-y", seen=serves, answers=Reply),
    "rollback": scenario("rollback", "-y", seen=half_done, answers=Reply),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_dry_shows_the_unit_and_asks_one_thing(ran: Runs) -> None:
    dry = ran["dry"]
    assert dry.status == 0, dry.output
    assert dry.of(NAME) == ["snapshot"] and dry.changing == ()
    assert f"[{NAME}] +ExecStart=/etc/rigbook/engine/serve.sh" in dry.stderr
    assert f"[{NAME}] +User=milo" in dry.stderr
    assert f"[{NAME}] +exec /opt/engine/venv/bin/vllm serve /srv/models/tiny" in dry.stderr
    assert "start rigbook-engine.service\n" in dry.stderr, "there is no container to name"
    assert "rigbook-pair" not in dry.stderr


def test_a_fresh_tower_is_written_started_and_blessed(ran: Runs) -> None:
    assert ran["fresh"].status == 0, ran["fresh"].output
    assert ran["fresh"].steps == [
        "tower1 apply directory+file+unit", "tower1 apply start", "tower1 close COMMITTED",
    ] or ran["fresh"].steps == [
        "tower1 apply file+unit", "tower1 apply start", "tower1 close COMMITTED",
    ]  # fmt: skip


def test_a_second_run_changes_nothing(ran: Runs) -> None:
    same = ran["as it should"]
    assert same.status == 0, same.output
    assert same.of(NAME) == ["snapshot"]
    assert re.search(r"Grand total +6 +- +- +6", same.stderr)


def test_a_changed_profile_restarts_it(ran: Runs) -> None:
    run = ran["profile"]
    assert run.status == 0, run.output
    assert run.steps == [
        "tower1 apply file+unit", "tower1 apply stop", "tower1 apply start",
        "tower1 close COMMITTED",
    ]  # fmt: skip


def test_an_engine_that_dies_is_taken_back(ran: Runs) -> None:
    run = ran["dies"]
    assert run.status == 1
    assert run.steps[-1] == "tower1 undo" and "ROLLED_BACK" in run.output


def test_a_missing_program_stops_it_before_a_change(ran: Runs) -> None:
    ran["no entry"].refused("venv-entry-missing", "127", "pip install")


def test_stop_proves_that_nothing_is_left_without_docker(ran: Runs) -> None:
    assert ran["stop"].status == 0, ran["stop"].output
    assert ran["stop"].steps == ["tower1 apply stop", "tower1 close COMMITTED"]
    assert ran["stopped"].status == 0 and ran["stopped"].changing == ()


def test_doctor_and_verify(ran: Runs) -> None:
    doctor = ran["doctor"]
    assert doctor.status == 0, doctor.output
    assert "nothing blocks" in doctor.stderr and "vllm 0.32.0+cpu" in doctor.stderr
    broken = ran["doctor 127"]
    assert broken.status == 1 and "the likeliest cause first: venv-entry-missing" in broken.output
    assert ran["verify"].status == 0, ran["verify"].output


def test_rollback_undoes_the_open_change(ran: Runs) -> None:
    run = ran["rollback"]
    assert run.status == 0, run.output
    assert "tower1 undo" in run.steps and "serves again" in run.output
