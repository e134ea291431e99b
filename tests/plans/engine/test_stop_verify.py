"""stop ends the engine in order and proves it; verify asks the endpoint and no host."""

from __future__ import annotations

import pytest

from tests.plans.support import rigs
from tests.plans.support.engine_double import METRICS, Reply, completion
from tests.plans.support.scenario import HEAD, INVENTORY, WORKER, Runs, Scenario, serving
from tests.unit.builders.snapshots import healthy

STOP = "deploys/stop.py"
VERIFY = ("deploys/verify.py", "-y")
SCENARIOS = {
    "stop dry": Scenario((STOP, "--dry")),
    "stop": Scenario((STOP, "-y")),
    "stopped": Scenario((STOP, "-y"), healthy),
    "survivor": Scenario(
        (STOP, "-y"),
        rigs.broken(
            serving,
            (HEAD, "units.0.active_state", "failed"),
            (WORKER, "units.0.active_state", "failed"),
        ),
    ),
    "stop refused": Scenario(
        (STOP, "-y"),
        faults={f"{HEAD}:apply stop": {"error": "systemctl stop: timeout", "code": "unit"}},
    ),
    "answers": Scenario(VERIFY, answers=Reply, metrics=METRICS),
    "silent": Scenario(VERIFY),
    "empty": Scenario(VERIFY, answers=lambda: Reply(completion("  "))),
    "no metrics": Scenario(VERIFY, answers=Reply, metrics=None),
    "not a vllm": Scenario(VERIFY, answers=Reply, metrics="go_threads 7\n"),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_stop_dry_shows_the_order_and_sends_nothing(ran: Runs) -> None:
    """Both stops are announced on their host."""
    dry = ran["stop dry"]
    assert dry.status == 0 and dry.changing == (), dry.output
    for name in (HEAD, WORKER):
        assert f"[{name}] stop rigbook-engine.service and its container" in dry.stderr


def test_stop_ends_the_head_first_and_proves_it(ran: Runs) -> None:
    """Both are looked at anew before the change is blessed."""
    stop = ran["stop"]
    assert stop.status == 0, stop.output
    assert stop.steps == [
        "lab1 apply stop",
        "lab2 apply stop",
        "lab1 close COMMITTED",
        "lab2 close COMMITTED",
    ]
    for name in (HEAD, WORKER):
        words = stop.of(name)
        assert words.index("snapshot", 1) in range(words.index("apply stop"), len(words) - 1)
    assert f"stopped on {HEAD}, {WORKER}; ports are free" in stop.stderr


def test_an_engine_that_outlived_its_unit_is_not_called_stopped(ran: Runs) -> None:
    """dockerd hung during the stop: the unit is failed, the container holds memory and ports."""
    survivor = ran["survivor"]
    assert survivor.status != 0 and survivor.changing == (), survivor.output
    assert f"{HEAD}: container rigbook-engine" in survivor.stderr
    assert "sudo docker rm -f rigbook-engine" in survivor.stderr


def test_the_unit_stays_enabled(ran: Runs) -> None:
    """The next boot brings the engine back."""
    applied = [c for c in ran["stop"].changing if c.verb == "apply"]
    assert all(step["enabled"] is None for c in applied for step in c.request["steps"])


def test_a_second_stop_changes_nothing(ran: Runs) -> None:
    """One look a host."""
    again = ran["stopped"]
    assert again.status == 0 and again.changing == (), again.output
    assert len(again.commands) == 2


def test_a_head_that_does_not_stop_leaves_the_worker_alone(ran: Runs) -> None:
    """Half a stop is told, with the way back."""
    run = ran["stop refused"]
    assert run.status == 1 and "Traceback" not in run.output
    assert run.steps == ["lab1 apply stop"]
    assert "systemctl stop: timeout" in run.stderr
    assert "stays OPEN; undo it with: deploys/rollback.py" in run.stderr


def test_verify_tells_what_answers_and_asks_no_host(ran: Runs) -> None:
    """The answer is the evidence; the metrics are counted."""
    run = ran["answers"]
    assert run.status == 0 and run.commands == (), run.output
    assert "tiny answers at http://" in run.stderr and "6 characters" in run.stderr
    assert "2 vllm: metrics at" in run.stderr


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("silent", "Connection refused"),
        ("empty", "the completion is empty"),
        ("no metrics", "answers, but"),
        ("not a vllm", "has no vllm: metric"),
    ],
)
def test_verify_fails_when_it_does_not_serve(ran: Runs, name: str, part: str) -> None:
    """Exit status 1 and the reason."""
    ran[name].refused(part)


def test_verify_names_the_next_command(ran: Runs) -> None:
    """With the inventory that the operator typed."""
    assert f"pyinfra {INVENTORY} deploys/doctor.py -y" in ran["silent"].last_words
