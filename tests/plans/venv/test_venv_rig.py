"""The same deploys on a rig of one node whose engine lives in a venv: no docker, no pair."""

from __future__ import annotations

import re
from typing import Any

from schema.plan import Plan
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    Runs,
    Scenario,
    Snapshots,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
)
from tests.unit.builders import rigs
from tests.unit.builders.host_parts import change
from tests.unit.builders.rigs import put

NAME = "@fake/tower1"
DIED = {f"{NAME}:start": "dies"}
OPEN_ID = "20260530T065800Z-serve-1a2b"


def hosts(address: str) -> list[Any]:
    """The one host of the rig, at the address of the engine's double."""
    data = rigs.tower_data(lan_address=address)
    del data["ssh_hostname"]
    return [(NAME, data)]


def made(plan: Plan) -> Plan:
    """The tower's plan at the address of this run."""
    return rigs.tower_plan(name=NAME, lan_address=str(plan.rig.head.lan_address))


def fresh(plan: Plan) -> Snapshots:
    """Ready, never served."""
    return rigs.healthy_tower(made(plan))


def serves(plan: Plan) -> Snapshots:
    """Serving as the recipe says."""
    return rigs.serving_tower(made(plan))


def no_entry(plan: Plan) -> Snapshots:
    """bin/vllm is gone (B3)."""
    return {NAME: put(fresh(plan)[NAME], "venvs.0.entry_kind", "absent")}


def half_done(plan: Plan) -> Snapshots:
    """A serve that was killed in the middle."""
    return {NAME: put(serves(plan)[NAME], "journal.changes", (change("OPEN", id=OPEN_ID),))}


def scenario(deploy: str, *words: str, **values: Any) -> Scenario:
    """A deploy on the tower."""
    return Scenario((f"deploys/{deploy}.py", *words), hosts=hosts, **values)


START = ["tower1 apply start", "tower1 close COMMITTED"]
TABLE = {
    "dry": (scenario("serve", "--dry", "--diff", seen=fresh), quiet(
        *(f"[{NAME}] {line}" for line in (
            "+ExecStart=/etc/rigbook/engine/serve.sh", "+User=milo",
            "+exec /opt/engine/venv/bin/vllm serve /srv/models/tiny")),
        # there is no container to name
        "start rigbook-engine.service\n", never=("rigbook-pair",),
        asks=["preflight", "snapshot"])),
    "fresh": (scenario("serve", "-y", seen=fresh, answers=Reply), done(
        steps=["tower1 apply file+unit", *START])),
    "as it should": (scenario("serve", "-y", seen=serves, answers=Reply), quiet(
        asks=["snapshot"])),
    "profile": (
        scenario("serve", "-y", *data("profile=single"), seen=serves, answers=Reply),
        done(steps=["tower1 apply file+unit", "tower1 apply stop", *START])),
    "dies": (scenario("serve", "-y", seen=fresh, answers=Reply, faults=DIED), failed(
        "ROLLED_BACK")),
    "no entry": (scenario("serve", "-y", seen=no_entry, answers=Reply), refused(
        "venv-entry-missing", "127", "pip install")),
    "stop": (scenario("stop", "-y", seen=serves, answers=Reply), done(
        steps=["tower1 apply stop", "tower1 close COMMITTED"])),
    "stopped": (scenario("stop", "-y", seen=fresh), quiet()),
    "doctor": (scenario("doctor", "-y", seen=serves, answers=Reply), done(
        "nothing blocks", "vllm 0.32.0+cpu")),
    "doctor 127": (scenario("doctor", "-y", seen=no_entry), failed(
        "the likeliest cause first: venv-entry-missing")),
    "verify": (scenario("verify", "-y", seen=serves, answers=Reply), done()),
    "rollback": (scenario("rollback", "-y", seen=half_done, answers=Reply), done("serves again")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_what_was_begun_is_undone(ran: Runs) -> None:
    assert ran["dies"].steps[-1] == "tower1 undo" and "tower1 undo" in ran["rollback"].steps


def test_a_second_run_counts_no_change(ran: Runs) -> None:
    assert re.search(r"Grand total +6 +- +- +6", ran["as it should"].stderr)
