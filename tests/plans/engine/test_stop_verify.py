"""stop ends the engine in order and proves it; verify asks the endpoint, and looks whose it is."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from schema.plan import Plan
from schema.snapshot import NodeSnapshot, ShmSegment
from tests.plans.support import scenario
from tests.plans.support.doubles import METRICS, Reply, completion, former_answers
from tests.plans.support.scenario import (
    HEAD,
    INVENTORY,
    PYINFRA,
    ROOT,
    WORKER,
    Ends,
    Runs,
    Scenario,
    Snapshots,
    commands,
    data,
    done,
    each_row,
    environ,
    failed,
    prepare,
    quiet,
    refused,
    serving,
    tiny_plan,
)
from tests.unit.builders.rigs import healthy, put

STOP = "deploys/stop.py"
VERIFY = ("deploys/verify.py", "-y")
SURVIVOR = scenario.broken(
    serving, *((name, "units.0.active_state", "failed") for name in (HEAD, WORKER))
)
SHM = {f"{name}:answers": {"shm": {"removed": [], "kept": [], "changed": False}}
       for name in (HEAD, WORKER)}  # fmt: skip
HALF = scenario.broken(serving, (WORKER, "units.0.active_state", "failed"))


def segment_left(plan: Plan) -> Snapshots:
    """A rig whose units are stopped; a segment of the head's engine is left, which nobody maps."""
    seen = dict(healthy(plan))
    segment = ShmSegment(name="psm_87eda3f8", size=1 << 24, uid=0, inode=7, mtime=1.0, mappers=())
    return {**seen, HEAD: put(seen[HEAD], "shm", (segment,))}


def former(plan: Plan) -> Snapshots:
    """The trial of fault 55: a former setup's engine has the port of ours."""
    seen = dict(serving(plan))
    now = seen[HEAD].model_dump(mode="json")
    former_answers(now, "active/running")
    return {**seen, HEAD: NodeSnapshot.model_validate(now)}


MADE = tempfile.TemporaryDirectory(prefix="rigbook-verify-")
CALL = {"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
MEASURE = (*VERIFY, *data("measure=true"))


def expecting(name: str, words: tuple[str, ...] = VERIFY, **expect: Any) -> Scenario:
    """verify of a recipe like tiny that expects more; the engine gives a call, in 0.2 s."""
    recipe = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    Path(MADE.name, f"{name}.yaml").write_text(
        yaml.safe_dump({**recipe, "expect": {**recipe["expect"], **expect}})
    )
    body = completion("Hello.", tool_calls=[CALL]) | {"usage": {"completion_tokens": 20}}
    return Scenario(words, data={"recipe": name, "recipes_dir": [MADE.name]}, metrics=METRICS,
                    answers=lambda: Reply(body, late_s=0.2))  # fmt: skip


def baselines(profile: str, *rates: tuple[int, float]) -> list[dict[str, Any]]:
    """Rows of a recipe's expect.baselines: streams, tokens a second."""
    return [{"profile": profile, "concurrency": c, "tokens_per_s": t} for c, t in rates]


def throughput(plan: Plan) -> Snapshots:
    """The pair as `serve --data profile=throughput` leaves it."""
    return serving(tiny_plan(str(plan.rig.head.lan_address), profile="throughput"))


TABLE = {
    "stop dry": (Scenario((STOP, "--dry")), quiet(
        *(f"[{name}] stop rigbook-engine.service and its container" for name in (HEAD, WORKER)))),
    "stop": (Scenario((STOP, "-y"), faults=SHM), done(
        f"stopped on {HEAD}, {WORKER}; no process, container, port or shared memory of the engine",
        steps=["lab2 open", "lab1 apply stop", "lab2 apply stop", {"lab1 shm", "lab2 shm"},
               "lab1 close COMMITTED", "lab2 close COMMITTED"])),
    "stopped": (Scenario((STOP, "-y"), healthy), quiet(asks=["snapshot", "snapshot"])),
    # dockerd hung during the stop: the unit is failed, the container holds memory and ports
    "survivor": (Scenario((STOP, "-y"), SURVIVOR), Ends(
        None, (), (f"{HEAD}: container rigbook-engine", "sudo docker rm -f rigbook-engine"))),
    # an engine that has ended left its segments: on a Spark that is the memory of the next one
    # where nothing of ours stops, a segment may be another program's
    "segment of others": (Scenario((STOP, "-y"), segment_left), quiet(never=("psm_87eda3f8",))),
    # half a stop is told, with the way back; the worker is left alone
    "stop refused": (
        Scenario((STOP, "-y"), faults={
            f"{HEAD}:apply stop": {"error": "systemctl stop: timeout", "code": "unit"}}),
        failed("systemctl stop: timeout",
               f"stays OPEN; undo it with: pyinfra {INVENTORY} deploys/roll",
               steps=["lab2 open", "lab1 apply stop", {"lab1 beat", "lab2 beat"}])),
    # the worker's pair check would start it anew: it has to know, before the head stops
    "worker locked": (
        Scenario((STOP, "-y"), faults={f"{WORKER}:open": {"error": "held", "code": "locked"}}),
        failed(f"{WORKER}: apply: held", steps=["lab2 open", {"lab1 beat", "lab2 beat"}])),
    # the answer is the evidence; the metrics are counted
    "answers": (Scenario(VERIFY, answers=Reply, metrics=METRICS), quiet(
        "tiny answers at http://", "6 characters", "2 vllm: metrics at", asks=["snapshot"] * 4)),
    "calls": (expecting("calls", tools=True), quiet(
        "a call of get_weather with arguments that fit", asks=["snapshot"] * 8)),
    "no call": (
        replace(expecting("no-call", tools=True), answers=Reply),
        refused("tiny answers, and gives no tool call: the model called no tool, it said 'Hello.'",
                "tool_call_parser")),
    # 20 tokens in 0.2 s: at most 100 tok/s a stream, and 110 are asked of the four: together
    "measured": (
        expecting("measured", MEASURE, baselines=baselines("balanced", (1, 40.0), (4, 130.0))
                  + baselines("latency", (1, 1e6))),
        quiet("runs profile balanced", "1 stream: ", "4 streams: ", "tok/s (median of 5, ",
              "baseline 130.0 (", never=("1000000",))),
    "too slow": (
        expecting("too-slow", MEASURE, baselines=baselines("balanced", (1, 40.0), (2, 1e6))),
        refused("tiny (balanced) answers, and is too slow: 2 streams ",
                "allowed 850000.0 tok/s (tolerance 15%)", says=("baseline 40.0 (+",))),
    # what runs is compared, not what the inventory names
    "another profile": (
        replace(expecting("another", MEASURE, baselines=baselines("balanced", (1, 1e6))
                          + baselines("throughput", (2, 40.0))), seen=throughput),
        quiet("runs profile throughput, not balanced", "2 streams: ", never=("1000000",))),
    "no baseline": (Scenario(MEASURE, answers=lambda: Reply(
        completion() | {"usage": {"completion_tokens": 96}}, late_s=0.01)), quiet(
        "1 stream: ", "recipe tiny has no baseline for balanced in expect", "deploys/bench.py -y")),
    "not measurable": (
        replace(expecting("not-measurable", MEASURE, baselines=baselines("balanced", (1, 4.0))),
                answers=Reply),
        refused("tiny answers, and could not be measured", "does not say how many tokens")),
    # fault 55: who answers is looked at
    "former answers": (Scenario(VERIFY, former, answers=Reply), refused(
        f"what answers is not this rig's engine: port 8000 of {HEAD} is held by pid 77",
        "sudo systemctl stop vllm-ds4-head.service && sudo docker stop vllm_ds4")),
    "worker down": (Scenario(VERIFY, HALF, answers=Reply), refused(
        f"rigbook-engine.service on {WORKER} is failed/running")),
    "silent": (Scenario(VERIFY), refused(
        "Connection refused", f"pyinfra {INVENTORY} deploys/doctor.py -y")),
    "empty": (
        Scenario(VERIFY, answers=lambda: Reply(completion("  "))),
        refused("the completion is empty")),
    "no metrics": (Scenario(VERIFY, answers=Reply, metrics=None), refused("answers, but")),
    "not a vllm": (
        Scenario(VERIFY, answers=Reply, metrics="go_threads 7\n"),
        refused("has no vllm: metric")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_both_are_looked_at_anew_before_the_stop_is_blessed(ran: Runs) -> None:
    for name in (HEAD, WORKER):
        words = ran["stop"].of(name)
        assert words.index("snapshot", 1) in range(words.index("apply stop"), len(words) - 1)


def test_the_unit_stays_enabled(ran: Runs) -> None:
    """The next boot brings the engine back."""
    applied = [c for c in ran["stop"].changing if c.verb == "apply"]
    assert all(step["enabled"] is None for c in applied for step in c.request["steps"])


def test_verify_looks_whose_answer_it_is(ran: Runs) -> None:
    """Fault 55: before the question on every node, and after it where there was an answer."""
    looks = {name: ran[name].of(HEAD) for name in ("answers", "former answers", "worker down")}
    assert looks["answers"] == ["snapshot", "snapshot"] == ran["answers"].of(WORKER)
    assert looks["former answers"] == looks["worker down"] == ["snapshot"]
    assert "answers at" not in ran["former answers"].output


def test_an_interrupt_names_the_open_change_and_what_does_not_serve(tmp_path: Path) -> None:
    """It was exit status 0, and no word that the rig is down."""
    stop = Scenario((STOP, "-y"), faults={**SHM, f"{WORKER}:slow": "apply stop"})
    prepare(stop, tmp_path, "127.0.0.2")
    with subprocess.Popen(
        [sys.executable, "-c", PYINFRA, INVENTORY, *stop.arguments], cwd=ROOT, text=True,
        env=environ(stop, tmp_path), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as run:  # fmt: skip
        deadline = time.monotonic() + 60
        while not any(c.what == "apply stop" and c.host == WORKER for c in commands(tmp_path)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=30)[0]
    assert run.returncode == 130, said
    (change,) = {c.request["change"]["id"] for c in commands(tmp_path) if c.what == "apply stop"}
    assert said.splitlines()[-1] == (
        f"--> interrupted: change {change} is open on {HEAD}, {WORKER}; it stopped the engine on "
        f"{HEAD}, {WORKER}, which does not serve; run the same command again, or undo it: "
        f"pyinfra {INVENTORY} deploys/rollback.py -y --data change={change}"
    ), said
