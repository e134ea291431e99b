"""serve on rigs that need everything, nothing, or a restart: what is shown and sent, in order."""

from __future__ import annotations

import re

import pytest

from deploys.plans import serve
from facts.endpoint import Answer
from schema.render_engine import ENV_PATH, SCRIPT_PATH, UNIT_PATH
from tests.plans.support import scenario
from tests.plans.support.doubles import ACCEPTED, Reply
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    data,
    done,
    each_row,
    quiet,
    refused,
)
from tests.unit.builders import rigs
from tests.unit.builders.rigs import healthy, spark_plan

SERVE = "deploys/serve.py"
THROUGHPUT = data("profile=throughput")
FILES = {"lab1 apply file+unit", "lab2 apply file+unit"}
STOP = ["lab1 apply stop", "lab2 apply stop"]
START = ["lab2 apply start", "lab1 apply start", "lab1 close COMMITTED", "lab2 close COMMITTED"]
LOOKS = ["snapshot", "snapshot"]
CHANGED = ("-  --max-model-len 512", "+  --max-model-len 256", "+  --max-num-seqs 8")
UNKNOWN = "unrecognized arguments: --no-such-flag"
REFUSED = {f"{HEAD}:says preflight": {**ACCEPTED, "outcome": "refused", "said": UNKNOWN}}
NO_MODULE = "ModuleNotFoundError: No module named 'vllm.entrypoints.cli'"
SILENT = {f"{HEAD}:says preflight": {**ACCEPTED, "outcome": "unchecked", "said": NO_MODULE}}
CUT = {f"{HEAD}:lost": "preflight"}
TABLE = {
    # read-only, and cheap; the diff is the host's own file
    "dry": (Scenario((SERVE, "--dry", "--diff"), healthy), quiet(
        f"[{HEAD}] +VLLM_HOST_IP=10.0.0.1", f"[{WORKER}] +VLLM_HOST_IP=10.0.0.2",
        f"[{WORKER}] +  --headless", f"takes the command line of {HEAD} (",
        never=(f"[{HEAD}] +  --headless",), asks=["preflight", *LOOKS])),
    # files on both, then the worker, then the head, then the proof closes the change on both
    "fresh": (Scenario((SERVE, "-y"), healthy, answers=Reply), done(steps=[FILES, *START])),
    "as it should": (Scenario((SERVE, "-y"), answers=Reply), quiet(
        "serving as the recipe says; a real answer: 6 characters", asks=LOOKS)),
    # the diff has the old and the new value
    "dry profile": (
        Scenario((SERVE, "--dry", "--diff", *THROUGHPUT), answers=Reply),
        quiet(*(f"[{name}] {line} \\\n" for name in (HEAD, WORKER) for line in CHANGED),
              never=("--tensor-parallel-size 2 \\\n    [@fake/lab1] +",))),
    # both files, head down, worker down, worker up, head up, proof, COMMITTED on both
    "profile": (Scenario((SERVE, "-y", *THROUGHPUT), answers=Reply), done(
        steps=[FILES, *STOP, *START])),
    # enabled; the change does not stay OPEN, and nothing restarts
    "unit disabled": (Scenario((SERVE, "-y"), scenario.unit_disabled, answers=Reply), done(
        steps=["lab2 apply unit", "lab2 close COMMITTED"])),
    # a newer checkout: its program in the units, shown; the engine serves on
    "newer program": (Scenario((SERVE, "-y", "--diff"), scenario.former_program, answers=Reply),
        done(
        f"-ExecStartPre={scenario.FORMER} prelaunch", f"+ExecStartPre={scenario.PROGRAM} prelaunch",
        steps=[FILES, {"lab1 close COMMITTED", "lab2 close COMMITTED"}],
        never=("its files change",))),
    # the new image's own parser says no: what serves is not stopped
    "parser refuses": (Scenario((SERVE, "-y", *THROUGHPUT), answers=Reply, faults=REFUSED), refused(
        f"first arguments-refused on {HEAD}", UNKNOWN, "catalog/recipes/tiny.yaml",
        "deploys/serve.py --data profile=throughput --dry")),
    "parser refuses, dry": (
        Scenario((SERVE, "--dry", *THROUGHPUT), answers=Reply, faults=REFUSED), refused(UNKNOWN)),
    "parser refuses, waived": (
        Scenario((SERVE, "-y", *THROUGHPUT, *data("waive=arguments-refused", "reason=patched")),
                 answers=Reply, faults=REFUSED),
        done("waived arguments-refused", steps=[FILES, *STOP, *START])),
    # which is told, and blocks nobody
    "parser silent": (Scenario((SERVE, "-y", *THROUGHPUT), answers=Reply, faults=SILENT), done(
        "warn arguments-unchecked", "ModuleNotFoundError",
        steps=[FILES, *STOP, *START], never=("takes the command line",))),
    "parser not reached": (Scenario((SERVE, "-y", *THROUGHPUT), answers=Reply, faults=CUT), done(
        "warn arguments-unchecked", "the line was cut", steps=[FILES, *STOP, *START])),
    # up as planned, and answers with an error: not called healthy
    "mute": (Scenario((SERVE, "--dry"), answers=lambda: Reply("CUDA error", status=500)), quiet(
        "running, but no real answer", "HTTP 500", "stop rigbook-engine.service")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


@pytest.mark.parametrize("name", [HEAD, WORKER])
@pytest.mark.parametrize("path", [SCRIPT_PATH, ENV_PATH, UNIT_PATH])
def test_dry_shows_each_files_diff(ran: Runs, name: str, path: str) -> None:
    """A file that is not there yet is shown whole, as a diff from nothing."""
    shown = ran["dry"].stderr
    assert f"[{name}] --- /dev/null\n    [{name}] +++ {path}\n" in shown


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


def test_each_host_is_asked_for_one_snapshot_before_anything_else(ran: Runs) -> None:
    asked = sorted((c.host, c.what) for c in ran["fresh"].commands[:2])
    assert asked == [(HEAD, "snapshot"), (WORKER, "snapshot")]


def test_a_run_is_counted_and_its_answer_told(ran: Runs) -> None:
    assert re.search(r"Grand total +11 +- +- +11", ran["as it should"].stderr)
    told = r"answers at http://\S+: 6 characters.*; change \S+ COMMITTED"
    assert re.search(told, ran["profile"].stderr)


def test_all_steps_belong_to_one_change(ran: Runs) -> None:
    """Both journals carry the same id, so that one rollback finds all of it."""
    headers = [c.request["change"] for c in ran["fresh"].changing]
    ids = {header if isinstance(header, str) else header["id"] for header in headers}
    assert len(ids) == 1


def test_the_head_is_asked_about_its_command_line(ran: Runs) -> None:
    """In the image that is to come, with its mounts; and by stdin, so that no user reads it."""
    commands = ran["profile"].commands
    (command,) = [c for c in commands if c.verb == "preflight"]
    argv = command.request["argv"]
    assert command.host == HEAD and argv[:3] == ["vllm", "serve", "/models/tiny"]
    assert argv[argv.index("--max-model-len") + 1] == "256"
    assert command.request["image"] == "rigbook/vllm-cpu:0.32.0"
    assert command.request["volumes"] == [["/srv/models/tiny", "/models/tiny"]]
    assert command.request["environ"]["OMP_NUM_THREADS"] == "1"
    assert "max-model-len" not in command.raw and not command.installs
    assert "preflight" not in ran["as it should"].of(HEAD)
    assert commands.index(command) < commands.index(ran["profile"].changing[0])


def test_only_changed_files_are_written(ran: Runs) -> None:
    """The environment is the same in both profiles, so it is left alone (and its secrets)."""
    first = next(c for c in ran["profile"].changing if c.host == HEAD)
    paths = [step["path"] for step in first.request["steps"] if step["op"] == "file"]
    assert {SCRIPT_PATH, UNIT_PATH} <= set(paths) and ENV_PATH not in paths


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
    seen = rigs.serving(plan)
    head = plan.rig.head.name
    since = None if since_s is None else seen[head].identity.clock_unix_s - since_s
    seen[head] = rigs.put(seen[head], "units.0.since_unix_s", since)
    assert serve._too_late(plan, seen, answer) is late
