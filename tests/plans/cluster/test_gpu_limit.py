"""gpu_limit: the arithmetic it prints, what it sends, what it refuses, and its way back."""

from __future__ import annotations

from typing import Any

import pytest

from gates.cluster.memory_limit import VARIABLE
from tests.plans.support.clusters import said, scenario
from tests.plans.support.scenario import Runs
from tests.unit.builders.kube_parts import NAME, OOM, look

LIMIT = "deploys/gpu_limit.py"
CARD = ("--data", "hardware_mib=24463")
ABSENT = {"kind": "env", "index": -1, "value": None, "why": None}


def seen(value: str = "23000m", log: tuple[str, ...] = (), **more: object) -> dict[str, Any]:
    """The Deployment with every limit that gpu_limit asks for."""
    document = said(look(value, log))
    names = [VARIABLE, *(f"{VARIABLE}_{n}" for n in range(8))]
    variables = {name: dict(ABSENT) for name in names} | {NAME: document["variables"][NAME]}
    return {**document, "variables": {**variables, "OTHER": dict(ABSENT)}, **more}


def rolled(value: str, live: tuple[str, ...] = (), **more: object) -> dict[str, Any]:
    """The same after its rollout; `live` is what its processes have."""
    document = seen(value, **more)
    document["rollout"]["generation"] = 2
    document["pods"][0]["uid"] = "u2"
    document["pods"][0]["live"] = {"processes": len(live), "values": {NAME: list(live)}}
    return document


PLANNED = seen(changes=[{"path": f"spec.env[{NAME}].value", "before": "23000m",
                         "after": "24000m"}])  # fmt: skip
STUCK = rolled("24000m", log=("booting", "asyncio.exceptions.TimeoutError"))
STUCK["pods"][0].update(stuck="CrashLoopBackOff", restarts=3)
STUCK["rollout"]["done"] = False
# the state that the seed's limit of 0m leaves: the pod that is to go is stuck
LOOP = seen()
LOOP["pods"][0].update(stuck="CrashLoopBackOff", restarts=9)
OLD = {**LOOP, "rollout": {**LOOP["rollout"], "done": False, "generation": 2}}
FLOW = [seen(), PLANNED, rolled("24000m", ("24000m",))]
ANSWER = ("--data", "url=http://10.96.0.10:8000", "--data", "model=qwen")
YES = {"answered": True, "detail": "20 characters in 0.7 s", "final": False, "model": "qwen"}
NO = {"answered": False, "detail": "Connection refused", "final": False, "model": ""}
DEAD = {**NO, "detail": "HTTP 500: dflash daemon has exited unexpectedly", "final": True}
CUT = {"files": [{"path": "/m.gguf", "size": 9, "format": "gguf", "said": "",
                  "broken": "cut off: its header promises 10 bytes, there are 9"}]}  # fmt: skip
MODELS = 'models={"/m.gguf": "gguf"}'
SCENARIOS = {
    "answers": scenario(LIMIT, "-y", *CARD, *ANSWER, "--data", "limit=24000m",
                        faults={"says kube look": FLOW, "says answer look": [NO, YES]}),
    "dies": scenario(LIMIT, "-y", *CARD, *ANSWER, "--data", "limit=24000m",
                     faults={"says kube look": FLOW, "says answer look": DEAD}),
    "mends": scenario(LIMIT, "-y", *CARD, "--data", "limit=24000m",
                      faults={"says kube look": [LOOP, PLANNED, OLD, rolled("24000m")]}),
    "cut model": scenario(LIMIT, "-y", *CARD, "--data", "limit=24000m", "--data", MODELS,
                          faults={"says kube look": FLOW, "says models look": CUT}),
    "set": scenario(LIMIT, "-y", *CARD, "--data", "limit=24000m", faults={"says kube look": FLOW}),
    "same": scenario(LIMIT, "-y", *CARD, "--data", "limit=24000m",
                     faults={"says kube look": seen("24000m")}),
    "computed": scenario(LIMIT, "--dry", *CARD, "--data", "reserve_mib=463",
                         faults={"says kube look": [seen(log=(OOM,)), PLANNED]}),
    "injected": scenario(LIMIT, "-y", *CARD, "--data", "limit=24000m",
                         faults={"says kube look": [*FLOW[:2], rolled("24000m", ("0m",))]}),
    "stuck": scenario(LIMIT, "-y", *CARD, "--data", "limit=24000m",
                      faults={"says kube look": [*FLOW[:2], STUCK]}),
    "zero": scenario(LIMIT, "-y", *CARD, "--data", "limit=0m", faults={"says kube look": seen()}),
    "nothing known": scenario(LIMIT, "-y", *CARD, faults={"says kube look": seen()}),
    "two": scenario(LIMIT, "-y", *CARD, "--data", "limit=24000m", faults={"says kube look": {
        **seen(), "variables": {**seen()["variables"], VARIABLE: seen()["variables"][NAME]}}}),
    "unclear": scenario(LIMIT, "-y", *CARD, "--data", "limit=24000m", faults={"says kube look": {
        **seen(), "variables": {**seen()["variables"], NAME: {
            "kind": "unclear", "index": -1, "value": None, "why": "more than once"}}}}),
    "set of a limit": scenario(LIMIT, "-y", "--data", f'set={{"{NAME}": "0m"}}',
                               faults={"says kube look": seen()}),
    "other": scenario(LIMIT, "--dry", "--data", 'set={"OTHER": "1"}',
                      faults={"says kube look": [seen(), PLANNED]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_the_arithmetic_the_change_and_its_proof(ran: Runs) -> None:
    done = ran["set"]
    assert done.status == 0, done.output
    for line in ("limit     25,165,824,000 bytes = 24,000.0 MiB = 23.44 GiB",
                 "left      485,490,688 bytes = 463.0 MiB", "'23000m' becomes '24000m'",
                 "seen in 1 processes of lucebox-1"):  # fmt: skip
        assert line in done.output
    assert done.steps == ["lab1 apply kube", "lab1 close COMMITTED"]
    step = done.changing[0].request["steps"][0]
    assert (step["set"], step["resource_version"]) == ({NAME: "24000m"}, "1")


def test_a_second_run_changes_nothing(ran: Runs) -> None:
    assert ran["same"].status == 0 and ran["same"].changing == ()


def test_without_a_limit_it_is_computed_from_the_oom_line(ran: Runs) -> None:
    """Incident A5."""
    out = ran["computed"].output
    assert "Device 0 OOM 24232551680 / 24117248000: 115,303,680 bytes" in out
    assert "limit     25,165,824,000 bytes" in out and "headroom 933,272,320 bytes" in out


def test_what_the_plugin_injects_is_seen_in_the_process_and_the_change_goes_back(ran: Runs) -> None:
    """Fault 49: the template says one thing, the process has another."""
    done = ran["injected"]
    assert done.status == 1 and f"its process has {NAME}=0m, not 24000m" in done.output
    assert done.steps == ["lab1 apply kube", "lab1 undo"]


def test_a_crash_loop_ends_the_wait_at_once_with_the_last_lines(ran: Runs) -> None:
    """Incident A4: not after the deadline of ten minutes."""
    done = ran["stuck"]
    assert done.status == 1 and "lucebox-1: CrashLoopBackOff, 3 restarts" in done.output
    assert "asyncio.exceptions.TimeoutError" in done.output
    assert done.steps == ["lab1 apply kube", "lab1 undo"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("zero", "'0m' is 0 bytes to HAMi-core"),
        ("nothing known", "no `Device N OOM` in the pods' logs"),
        ("two", f"sets {VARIABLE}, {NAME}; name the one: --data device=N"),
        ("unclear", "more than once"),
        ("set of a limit", "is a memory limit; give it as --data limit="),
    ],
)
def test_what_is_refused(ran: Runs, name: str, part: str) -> None:
    ran[name].refused(part)


def test_another_variable_goes_the_same_way_without_a_limit(ran: Runs) -> None:
    other = ran["other"]
    assert other.status == 0 and "hardware" not in other.output and other.changing == ()


def test_ready_means_a_real_completion(ran: Runs) -> None:
    """Incidents A4 and A5: a pod that runs and dies at its first request is not ready."""
    done = ran["answers"]
    assert done.status == 0 and "no completion yet: Connection refused" in done.output
    assert "qwen answers at http://10.96.0.10:8000: 20 characters" in done.output
    dead = ran["dies"]
    assert dead.status == 1 and "dflash daemon has exited unexpectedly" in dead.output
    assert dead.steps == ["lab1 apply kube", "lab1 undo"]


def test_a_model_file_that_is_cut_stops_it_before_the_pod_starts(ran: Runs) -> None:
    """Incident A2's sibling: found by its header, not minutes after the start."""
    ran["cut model"].refused("model-file")


def test_a_pod_that_was_stuck_before_does_not_end_the_wait_for_the_new_one(ran: Runs) -> None:
    """Incident A3: the limit is changed because the pod is in a crash loop."""
    done = ran["mends"]
    assert done.status == 0 and done.steps == ["lab1 apply kube", "lab1 close COMMITTED"]
