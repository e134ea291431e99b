"""serve on rigs that need everything, nothing, or a restart: what is shown and sent, in order."""

from __future__ import annotations

import re

import pytest

from deploys.procedures.engine import installed
from facts.endpoint.completion import Answer
from schema.render.engine_files import ENV_PATH, SCRIPT_PATH, UNIT_PATH
from tests.plans.support import rigs
from tests.plans.support.commands import Sent
from tests.plans.support.engine_double import Reply
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario
from tests.unit.builders import snapshots
from tests.unit.builders.snapshots import healthy
from tests.unit.builders.spark_rig import spark_plan

SERVE = "deploys/serve.py"
THROUGHPUT = ("--data", "profile=throughput")
RESTART = [
    "lab1 apply stop",
    "lab2 apply stop",
    "lab2 apply start",
    "lab1 apply start",
    "lab1 close COMMITTED",
    "lab2 close COMMITTED",
]
SCENARIOS = {
    "dry": Scenario((SERVE, "--dry", "--diff"), healthy),
    "fresh": Scenario((SERVE, "-y"), healthy, answers=Reply),
    "as it should": Scenario((SERVE, "-y"), answers=Reply),
    "dry profile": Scenario((SERVE, "--dry", "--diff", *THROUGHPUT), answers=Reply),
    "profile": Scenario((SERVE, "-y", *THROUGHPUT), answers=Reply),
    "unit disabled": Scenario((SERVE, "-y"), rigs.unit_disabled, answers=Reply),
    "mute": Scenario((SERVE, "--dry"), answers=lambda: Reply("CUDA error", status=500)),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def starts_with_one_look(commands: tuple[Sent, ...]) -> bool:
    """Whether each host was asked for one snapshot before anything else."""
    return sorted((c.host, c.what) for c in commands[:2]) == [
        (HEAD, "snapshot"),
        (WORKER, "snapshot"),
    ]


def test_dry_asks_for_one_snapshot_a_host_and_sends_nothing_else(ran: Runs) -> None:
    """A dry run is read-only, and cheap."""
    dry = ran["dry"]
    assert dry.status == 0, dry.output
    assert starts_with_one_look(dry.commands) and len(dry.commands) == 2
    assert dry.changing == ()


@pytest.mark.parametrize("name", [HEAD, WORKER])
@pytest.mark.parametrize("path", [SCRIPT_PATH, ENV_PATH, UNIT_PATH])
def test_dry_shows_each_files_diff(ran: Runs, name: str, path: str) -> None:
    """A file that is not there yet is shown whole, as a diff from nothing."""
    shown = ran["dry"].stderr
    assert f"[{name}] --- /dev/null\n    [{name}] +++ {path}\n" in shown


def test_dry_shows_the_flags_and_each_nodes_own_values(ran: Runs) -> None:
    """The diff is the host's own file."""
    shown = ran["dry"].stderr
    assert f"[{HEAD}] +VLLM_HOST_IP=10.0.0.1" in shown
    assert f"[{WORKER}] +VLLM_HOST_IP=10.0.0.2" in shown
    assert f"[{WORKER}] +  --headless" in shown and f"[{HEAD}] +  --headless" not in shown


def test_dry_shows_the_order(ran: Runs) -> None:
    """Enable on both, workers before the head, the proof last; no stop where nothing runs."""
    table = ran["dry"].stderr.partition("Detected changes:")[2]
    rows = re.findall(r"^    (\S.*?)   +(\d|-) ?(\(.*?\))?", table, re.M)
    planned = [(what, hosts) for what, number, hosts in rows if number.isdigit()]
    assert planned == [
        ("Write the launch script, the environment and the unit", f"({HEAD}, {WORKER})"),
        ("Start the workers", f"({WORKER})"),
        ("Start the head", f"({HEAD})"),
        ("A real chat completion", f"({HEAD})"),
    ]
    for name in (HEAD, WORKER):
        assert f"[{name}] enable rigbook-engine.service" in ran["dry"].stderr


def test_a_fresh_rig_is_written_started_in_order_and_blessed(ran: Runs) -> None:
    """Files on both, then the worker, then the head, then the proof closes the change on both."""
    fresh = ran["fresh"]
    assert fresh.status == 0, fresh.output
    assert starts_with_one_look(fresh.commands)
    assert sorted(fresh.steps[:2]) == ["lab1 apply file+unit", "lab2 apply file+unit"]
    assert fresh.steps[2:] == RESTART[2:]


def test_all_steps_belong_to_one_change(ran: Runs) -> None:
    """Both journals carry the same id, so that one rollback finds all of it."""
    headers = [c.request["change"] for c in ran["fresh"].changing]
    ids = {header if isinstance(header, str) else header["id"] for header in headers}
    assert len(ids) == 1


def test_a_second_run_changes_nothing(ran: Runs) -> None:
    """One remote command a host, no step, and it says that it serves."""
    same = ran["as it should"]
    assert same.status == 0, same.output
    assert len(same.commands) == 2 and starts_with_one_look(same.commands)
    assert "serving as the recipe says; a real answer: 6 characters" in same.stderr
    assert re.search(r"Grand total +11 +- +- +11", same.stderr)


def test_a_changed_profile_shows_the_flags(ran: Runs) -> None:
    """The diff has the old and the new value, and nothing was sent."""
    dry = ran["dry profile"]
    assert dry.status == 0 and dry.changing == ()
    for name in (HEAD, WORKER):
        assert f"[{name}] -  --max-model-len 512 \\\n" in dry.stderr
        assert f"[{name}] +  --max-model-len 256 \\\n" in dry.stderr
        assert f"[{name}] +  --max-num-seqs 8 \\\n" in dry.stderr
    assert "--tensor-parallel-size 2 \\\n    [@fake/lab1] +" not in dry.stderr


def test_a_changed_profile_restarts_in_order(ran: Runs) -> None:
    """Both files, head down, worker down, worker up, head up, proof, COMMITTED on both."""
    profile = ran["profile"]
    assert profile.status == 0, profile.output
    assert sorted(profile.steps[:2]) == ["lab1 apply file+unit", "lab2 apply file+unit"]
    assert profile.steps[2:] == RESTART
    assert re.search(r"answers at http://\S+: 6 characters.*; change \S+ COMMITTED", profile.stderr)


def test_only_changed_files_are_written(ran: Runs) -> None:
    """The environment is the same in both profiles, so it is left alone (and its secrets)."""
    first = next(c for c in ran["profile"].changing if c.host == HEAD)
    paths = [step["path"] for step in first.request["steps"] if step["op"] == "file"]
    assert {SCRIPT_PATH, UNIT_PATH} <= set(paths) and ENV_PATH not in paths


def test_a_step_without_a_restart_is_blessed_too(ran: Runs) -> None:
    """A disabled unit is enabled; the change does not stay OPEN, and nothing restarts."""
    run = ran["unit disabled"]
    assert run.status == 0, run.output
    assert run.steps == ["lab2 apply unit", "lab2 close COMMITTED"]


def test_a_running_engine_that_answers_500_is_restarted(ran: Runs) -> None:
    """An engine that is up as planned and answers with an error is not called healthy."""
    mute = ran["mute"]
    assert mute.status == 0 and mute.changing == ()
    assert "running, but no real answer" in mute.stderr and "HTTP 500" in mute.stderr
    assert "stop rigbook-engine.service" in mute.stderr


@pytest.mark.parametrize(
    ("answer", "since_s", "late"),
    [
        # 401: it runs, and wants a key that a restart would not bring.
        (Answer(False, "401", final=True, alive=True), 9999, False),
        (Answer(False, "HTTP 500", final=True), 1, True),
        (Answer(False, "refused"), 899, False),
        (Answer(False, "refused"), 901, True),
        (Answer(False, "refused"), None, True),
    ],
)
def test_when_a_running_engine_without_an_answer_is_restarted(
    answer: Answer, since_s: int | None, late: bool
) -> None:
    """One that still loads is left its time, one that only wants a key is left alone."""
    plan = spark_plan()
    assert plan.recipe.expect.start_budget_s == 900
    seen = snapshots.serving(plan)
    head = plan.rig.head.name
    since = None if since_s is None else seen[head].identity.clock_unix_s - since_s
    seen[head] = snapshots.put(seen[head], "units.0.since_unix_s", since)
    assert installed._too_late(plan, seen, answer) is late
