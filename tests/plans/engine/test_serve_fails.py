"""serve when a step fails on one host: the rig stops as one, and goes back as one."""

from __future__ import annotations

import pytest

from tests.plans.support.engine_double import Reply
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario
from tests.unit.builders.snapshots import healthy

SERVE = ("deploys/serve.py", "-y")
REFUSED = {
    "error": "/etc/rigbook/engine/serve.sh: it was edited meanwhile; nothing was changed",
    "code": "changed_meanwhile",
    "remedy": "look at the file, then run again",
}
SCENARIOS = {
    "apply refused": Scenario(
        SERVE,
        healthy,
        faults={f"{WORKER}:apply file+unit": REFUSED, f"{WORKER}:slow": "apply file+unit"},
        answers=Reply,
    ),
    "line cut": Scenario(SERVE, healthy, faults={f"{WORKER}:lost": "apply start"}),
    "worker dies": Scenario(SERVE, healthy, faults={f"{WORKER}:start": "dies"}),
    "new profile dies": Scenario(
        (*SERVE, "--data", "profile=throughput"),
        faults={f"{HEAD}:start": "dies"},
        answers=Reply,
    ),
    "undo fails": Scenario(
        SERVE,
        healthy,
        faults={
            f"{WORKER}:start": "dies",
            f"{HEAD}:undo": {"error": "edited since", "code": "edited", "remedy": "name it"},
        },
    ),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_failed_run_says_so(ran: Runs, name: str) -> None:
    """Exit status 1, no traceback, and no change is blessed."""
    run = ran[name]
    assert run.status == 1, run.output
    assert "Traceback" not in run.output
    assert not any("COMMITTED" in step for step in run.steps)


def test_a_refused_step_stops_both_hosts_before_any_start(ran: Runs) -> None:
    """The other host's files go back, no engine was touched, and the line is node's own."""
    run = ran["apply refused"]
    line = f"{WORKER}: apply: {REFUSED['error']}; {REFUSED['remedy']}"
    assert run.stderr.count(line) == 1
    assert not any("start" in step or "stop" in step for step in run.steps)
    assert sorted(run.steps[:2]) == ["lab1 apply file+unit", "lab2 apply file+unit"]
    assert run.steps[2:] == ["lab2 undo", "lab1 undo"]
    assert "ROLLED_BACK; no engine ran before, none runs now" in run.stderr


def test_a_cut_line_takes_both_hosts_back(ran: Runs) -> None:
    """What the lost host did is unknown, so it is undone as well; the head never starts."""
    run = ran["line cut"]
    assert "apply: the connection failed: stand-in: the line was cut" in run.stderr
    assert "lab1 apply start" not in run.steps
    assert run.steps[-2:] == ["lab2 undo", "lab1 undo"]


def test_an_engine_that_dies_shows_its_log_and_all_goes_back(ran: Runs) -> None:
    """Reason, log lines, both stopped head first, undone worker first."""
    run = ran["worker dies"]
    assert f"{WORKER}: unit failed: exit-code, exit status 1" in run.stderr
    assert f"the last 2 log lines of {WORKER}:" in run.stderr
    assert "stand-in engine: ValueError: no such flag" in run.stderr
    assert run.steps[-4:] == [
        "lab1 systemctl-stop",
        "lab2 systemctl-stop",
        "lab2 undo",
        "lab1 undo",
    ]


def test_the_undo_names_this_runs_change(ran: Runs) -> None:
    """Never the newest of the journal, which another operator may have opened."""
    commands = ran["worker dies"].changing
    applied = next(c for c in commands if c.verb == "apply").request["change"]["id"]
    undone = {c.request["change"] for c in commands if c.verb == "undo"}
    assert undone == {applied}


def test_a_bad_profile_gives_way_to_the_former_engine(ran: Runs) -> None:
    """The rig serves again by itself, and the run still fails."""
    run = ran["new profile dies"]
    assert run.steps[-2:] == ["lab2 undo", "lab1 undo"]
    assert "ROLLED_BACK; tiny serves again: 6 characters" in run.stderr


def test_an_undo_that_fails_names_the_way_to_finish(ran: Runs) -> None:
    """What came back stays; the operator gets the reason and the command."""
    run = ran["undo fails"]
    applied = next(c for c in run.changing if c.verb == "apply").request["change"]["id"]
    assert f"could not go back whole: {HEAD}: undo: edited since; name it" in run.stderr
    assert f"deploys/rollback.py --data change={applied}" in run.stderr
