"""The doctor as an operator runs it, against stand-in hosts: text, JSON, exit status, no change."""

from __future__ import annotations

import json
import re

import pytest

from gates.core.codes import CODES
from gates.core.violation import Layer
from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot
from tests.plans.support import rigs
from tests.plans.support.engine_double import Reply
from tests.plans.support.scenario import HEAD, INVENTORY, WORKER, Runs, Scenario
from tests.unit.builders.host_parts import unit
from tests.unit.builders.snapshots import put, serving

DOCTOR = ("deploys/doctor.py", "-y")
KEYS = ["code", "layer", "severity", "node", "summary", "evidence", "cause", "remedy", "explains",
        "unknown"]  # fmt: skip


def wedged(plan: Plan) -> dict[str, NodeSnapshot]:
    """Both units run, and the ranks are not joined."""
    return {name: put(seen, "connections", ()) for name, seen in serving(plan).items()}


def ghost(plan: Plan) -> dict[str, NodeSnapshot]:
    """The head's unit starts what is not there, again and again."""
    seen = dict(serving(plan))
    gone = unit(active_state="activating", sub_state="auto-restart", result="exit-code",
                exit_kind="exited", exit_status=203, restarts=30, exec_start_exists=False,
                exec_start=("/opt/gone",), drop_ins=("/etc/x.conf",))  # fmt: skip
    for path, value in (("units.0", gone), ("docker.containers", ()), ("engine_processes", ()),
                        ("ports", ()), ("memory.available", 110 * 2**30)):  # fmt: skip
        seen[HEAD] = put(seen[HEAD], path, value)
    return seen


JSON = ("--data", "json=true")
SCENARIOS = {
    "well": Scenario(DOCTOR, answers=Reply),
    "well json": Scenario((*DOCTOR, *JSON), answers=Reply),
    "ghost": Scenario(DOCTOR, ghost),
    "ghost json": Scenario((*DOCTOR, *JSON), ghost),
    "wedged json": Scenario(
        (*DOCTOR, *JSON), wedged, answers=lambda: Reply("EngineDeadError", status=500)
    ),
    "docker json": Scenario((*DOCTOR, *JSON), rigs.docker_silent),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    return Runs(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_changed_and_nothing_breaks(ran: Runs, name: str) -> None:
    assert ran[name].changing == () and "Traceback" not in ran[name].output


def test_a_rig_that_serves_has_a_line_a_node(ran: Runs) -> None:
    run = ran["well"]
    assert run.status == 0, run.output
    for node, role in ((HEAD, "head, rank 0"), (WORKER, "worker, rank 1")):
        assert re.search(rf"{node}: {role}, tiny \(balanced\), active for 10 min", run.stderr)
    assert "serves; nothing blocks; a first answer in" in run.stderr
    assert json.loads(ran["well json"].stdout) == [] and ran["well json"].status == 0


def test_the_text_says_why_how_and_what_to_ignore(ran: Runs) -> None:
    run = ran["ghost"]
    assert run.status == 1
    first = run.stderr[run.stderr.index("unit-ghost") :].splitlines()
    assert "starts a program that does not exist: /opt/gone" in first[0]
    assert [line.split(":")[0].strip() for line in first[1:5]] == [
        "evidence", "cause", "mend", "because of this, ignore"]  # fmt: skip
    ignored = first[4].partition("ignore: ")[2].split(", ")
    assert {f"crash-loop@{HEAD}", f"engine-down@{HEAD}", f"no-answer@{HEAD}"} <= {*ignored}
    run.refused("block serving, the likeliest cause first: unit-ghost", f"on {HEAD}")


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.endswith("json")])
def test_the_json_has_its_form(ran: Runs, name: str) -> None:
    rows = json.loads(ran[name].stdout)
    keys = {row["code"] + (f"@{row['node']}" if row["node"] else "") for row in rows}
    for row in rows:
        assert list(row) == KEYS and row["code"] in CODES
        assert Layer[row["layer"].upper()] == CODES[row["code"]].layer
        assert row["severity"] in ("block", "warn") and isinstance(row["unknown"], bool)
        assert row["node"] in (HEAD, WORKER, None) and {*row["explains"]} <= keys
        for key in ("summary", "evidence", "cause", "remedy"):
            assert row[key] and isinstance(row[key], str) and "INVENTORY" not in row[key]
    blocks = any(row["severity"] == "block" for row in rows)
    assert ran[name].status == (1 if blocks else 0)


def test_causes_stand_before_what_they_explain(ran: Runs) -> None:
    for name in ("ghost json", "wedged json", "docker json"):
        rows = json.loads(ran[name].stdout)
        place = {f"{row['code']}@{row['node']}": n for n, row in enumerate(rows)}
        for row in rows:
            assert all(place[f"{row['code']}@{row['node']}"] < place[e] for e in row["explains"])
    wedge = json.loads(ran["wedged json"].stdout)[0]
    assert wedge["code"] == "wedged-pair" and f"pyinfra {INVENTORY}" in wedge["remedy"]
    docker = json.loads(ran["docker json"].stdout)[0]
    assert docker["code"] == "docker-unreadable" and docker["unknown"] is True
