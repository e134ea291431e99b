"""bench measures and keeps what came; compare tells two kept ones apart; bad input is one line."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from schema.measure import BenchRun
from tests.plans.support.doubles import Reply, completion
from tests.plans.support.scenario import (
    HEAD,
    Runs,
    Scenario,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
)
from tests.unit.builders.pages import measured_bench

BENCH = ("deploys/bench.py", "-y")
MADE = tempfile.TemporaryDirectory(prefix="rigbook-bench-")
METRICS = """\
vllm:generation_tokens_total{engine="0"} 90000
vllm:num_requests_running{engine="0"} 0
vllm:prefix_cache_hits_total{engine="0"} 7
"""


def folder(name: str, *runs: BenchRun) -> dict[str, str]:
    """The variable that names a folder of measurements, which holds these runs."""
    path = Path(MADE.name, name, "lab")
    path.mkdir(parents=True, exist_ok=True)
    for run in runs:
        (path / f"{run.id}.json").write_text(run.model_dump_json())
    return {"RIGBOOK_MEASUREMENTS": str(path.parent)}


def reply() -> Reply:
    """20 tokens in 0.01 s."""
    return Reply(completion() | {"usage": {"completion_tokens": 20}}, late_s=0.01)


def measured(name: str, *keys: str, metrics: str | None = METRICS, **more: Any) -> Scenario:
    """A bench of the pair that serves."""
    return Scenario((*BENCH, *data(*keys)), answers=reply, metrics=metrics, env=folder(name),
                    **more)  # fmt: skip


A = measured_bench("20261101T080000Z-bench-aaaa", (88.0, 88.4, 88.8, 88.1, 88.9), streams=16)
B = measured_bench("20261102T080000Z-bench-bbbb", (88.1, 87.6, 88.3, 87.9, 88.5), streams=16)
C = measured_bench("20261103T080000Z-bench-cccc", (163.0, 162.8, 164.1, 163.3, 162.9), streams=16,
          argv=("vllm", "serve", "m", "--max-num-seqs", "16"))  # fmt: skip
EACH = ["lab1 apply stop", "lab2 apply stop", "lab2 apply file+unit", "lab1 apply file+unit",
        "lab2 apply start", "lab1 apply start"]  # fmt: skip
BACK = ["lab1 systemctl-stop", "lab2 systemctl-stop", "lab2 undo", "lab1 undo"]


def profiles(name: str, names: str = "throughput", **more: Any) -> Scenario:
    """A short bench of each of these profiles, on a pair that serves balanced."""
    return measured(name, f"profiles={names}", "quick=true", "tokens=20", **more)


COMPARE = (*BENCH, "--data")
TABLE = {
    # capped by the four of tiny's max_num_seqs; 512 of its max_model_len leave no room for more
    "sweep": (measured("sweep", "tokens=64"), done(
        "runs profile balanced", "1 stream: 5", "2 streams: 10", "4 streams: 20",
        "first token 50 ms, p95 50 ms", "1 stream by rigbook, from the operator's machine",
        "kept as ", "kept on @fake/lab1 as /var/lib/rigbook/measurements/",
        steps=["lab1 measure keep"], never=("8 streams", "prefill of 2048"))),
    "prefill": (measured("prefill", "tokens=64", "contexts=100,300"), done(
        "prefill of 100 tokens: 1000 tok/s; the prefix cache found nothing")),
    "quick": (measured("quick", "quick=true", "rounds=3", "tokens=20"), done(
        "1 stream: 5", "3 rounds", never=("2 streams", "prefill"))),
    "busy": (measured("busy", "quick=true", "tokens=20",
                      metrics=METRICS.replace("running{engine=\"0\"} 0", "running 3")), done(
        "DOUBT: 3 requests of others ran or waited")),
    "cold": (measured("cold", "quick=true", "tokens=20",
                      metrics=METRICS.replace("90000", "12")), done(
        "DOUBT: cold: the engine had made 12 tokens since its start")),
    "no client": (measured("no-client", faults={"@fake/lab1:measure load": {
        "error": "2.0 GiB of memory are available, and vLLM's client beside the engine needs 3 GiB",
        "code": "memory"}}), refused("nothing was measured: ", "2.0 GiB of memory are available")),
    # the first point is there when the second one fails
    "half": (measured("half", "tokens=20", faults={"@fake/lab1:then measure load": [
        {"client": "vllm bench serve 0.32.0", "rounds": []},
        {"error": "vLLM's client could not be run: exit status 137", "code": "client"}]}), refused(
        "exit status 137; what was measured is kept in",
        says=("1 stream: not measured: no answer",))),
    "dry": (Scenario(("deploys/bench.py", "--dry"), answers=reply, env=folder("dry")), quiet(
        "would measure the engine that runs", never=("tok/s",))),
    "too long": (measured("too-long", "tokens=500"), refused(
        "tokens: 500 with their prompts do not fit into --max-model-len 512")),
    "silent": (Scenario(BENCH, env=folder("silent")), refused(
        "nothing was measured: tiny does not answer", "deploys/doctor.py -y")),
    "key": (Scenario(BENCH, answers=lambda: Reply("no", status=401), env=folder("key")), refused(
        "nothing was measured", "401", "RIGBOOK_API_KEY")),
    "no metrics": (measured("no-metrics", metrics=None), refused("/metrics: HTTP 404")),
    "not a vllm": (measured("not-a-vllm", metrics="go_threads 7\n"), refused("is that a vLLM?")),
    # more than max_num_seqs where they are named: they wait
    "named": (measured("named", "streams=8", "tokens=20", "rounds=3"), done(
        "1 stream: 5", "8 streams: 40", never=("2 streams",))),
    "streams": (measured("streams", "streams=0"), refused("streams: is no list of numbers from 1")),
    "words": (measured("words", "streams=many"), refused("streams: 'many' is no list of numbers")),
    # 88.4 and 88.1: the seed's "within noise"; 163.2 by three arguments
    "noise": (Scenario((*COMPARE, f"compare={A.id},{B.id}"), env=folder("two", A, B, C)), quiet(
        "16 streams: within noise: 88.4 -> 88.1 tok/s", never=("better", "worse"))),
    "better": (Scenario((*COMPARE, "compare=20261101,last"), env=folder("two", A, B, C)), quiet(
        "16 streams: better: 88.4 -> 163.2 tok/s (+84.6%",
        "the command line differs: max_num_seqs not set -> 16")),
    "empty": (Scenario((*COMPARE, "compare=A,B"), env=folder("empty")), refused(
        "no bench of rig lab is kept in", "deploys/bench.py")),
    "unknown": (Scenario((*COMPARE, "compare=last,nope"), env=folder("two", A, B, C)), refused(
        "nope is no bench of this rig; there are: 20261103T080000Z-bench-cccc")),
    "many": (Scenario((*COMPARE, "compare=last,202611"), env=folder("two", A, B, C)), refused(
        "202611 begins 3 ids")),
    "one": (Scenario((*COMPARE, "compare=last"), env=folder("two", A, B, C)), refused(
        "names 1; allowed: two")),
    "profiles": (profiles("profiles", "throughput,latency"), done(
        "profile throughput", "runs profile throughput", "from its start: port after",
        "runs profile latency", "ROLLED_BACK; tiny serves again: ",
        steps=["lab1 open", "lab2 open", *EACH, "lab1 measure keep", *EACH, "lab1 measure keep",
               *BACK])),
    "under a lease": (measured("leased", "profiles=throughput", "quick=true", "tokens=20",
                               "lease=true"), done("ROLLED_BACK; tiny serves again: ")),
    # whatever ends it, the engine is back on the profile that it had
    "ctrl-c": (profiles("ctrl-c", faults={f"{HEAD}:ctrl-c": True}), failed(
        "interrupted by Ctrl-C; what was measured is kept", "ROLLED_BACK; tiny serves again",
        steps=["lab1 open", "lab2 open", *EACH, *BACK])),
    "client fails": (profiles("client-fails", faults={f"{HEAD}:measure load": {
        "error": "no room", "code": "client"}}), failed(
        "profile throughput: nothing was measured: ", "no room", "ROLLED_BACK",
        steps=["lab1 open", "lab2 open", *EACH, *BACK])),
    "dies": (profiles("dies", faults={f"{HEAD}:start": "dies"}), failed("ROLLED_BACK")),
    "dry profiles": (Scenario(("deploys/bench.py", "--dry", *data("profiles=throughput")),
                              answers=reply, env=folder("dry")), quiet(
        "serve and measure throughput; then back to what serves now")),
    "loaders": (measured("loaders", "loaders=safetensors"), refused(
        "loaders: each loader is a profile of the recipe now")),
    "no profile": (measured("no-profile", "profiles=fast"), refused(
        "profiles: recipe tiny: unknown profile 'fast'")),
    "both": (measured("both", "profiles=latency", "compare=a,b"), refused(
        "compare: with profiles; allowed: one of them")),
    "help": (Scenario(("deploys/bench.py", *data("help=true"))), quiet("streams", "compare")),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All of them."""
    return Runs({name: scenario for name, (scenario, _) in TABLE.items()})


test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_what_was_measured_is_kept_whole_or_in_part(ran: Runs) -> None:
    """The document has what is needed to compare; one that was cut off says so."""
    kept = [*Path(MADE.name, "sweep", "lab").glob("*.json")]
    assert len(kept) == 1
    run = BenchRun.model_validate_json(kept[0].read_text())
    assert run.complete and [p.streams for p in run.points] == [1, 2, 4]
    assert all(len(p.rounds) == 5 and p.warm_up for p in run.points)
    assert run.subject.argv[:2] == ("vllm", "serve") and len(run.subject.recipe_sha256) == 64
    assert [m.node for m in run.machines] == ["@fake/lab1", "@fake/lab2"]
    assert all(m.kernel and m.samples for m in run.machines)
    assert run.client == "vllm bench serve 0.32.0" and run.cold is False
    assert [*Path(MADE.name, "no-client", "lab").glob("*")] == []
    (part,) = Path(MADE.name, "half", "lab").glob("*.json")
    half = BenchRun.model_validate_json(part.read_text())
    assert not half.complete and [p.streams for p in half.points] == [1]
