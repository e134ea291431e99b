"""serve and verify of a Kubernetes rig: what is started, waited for, and what ends the wait."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plans.support.clusters import said, scenario
from tests.plans.support.scenario import Runs
from tests.unit.builders.kube_parts import look
from tests.unit.builders.library_parts import look as library_look

SERVE, VERIFY = "deploys/serve.py", "deploys/verify.py"
ASK = ("--data", "service=lucebox", "--data", "port=8000", "--data", "model=qwen")
URL = ("--data", "url=http://10.96.0.10:8000", "--data", "model=qwen")
YES = {"answered": True, "detail": "qwen answered in 0.7 s", "final": False, "model": "qwen",
       "where": "http://10.96.0.9:8000"}  # fmt: skip
NO = {**YES, "answered": False, "detail": "Connection refused", "model": "", "where": ""}
DEAD = {**NO, "detail": "HTTP 500: dflash daemon has exited unexpectedly", "final": True}
MODELS = 'models={"/m.gguf": "gguf", "/draft.safetensors": "safetensors"}'
FILES = {"files": [
    {"path": "/m.gguf", "size": 9, "format": "gguf", "said": "", "broken": None},
    {"path": "/draft.safetensors", "size": 9, "format": "gguf", "said": "", "broken": None},
]}  # fmt: skip


def pods(wanted: int = 1, log: tuple[str, ...] = (), **pod: object) -> dict[str, Any]:
    """The Deployment with one pod (none where none is wanted)."""
    document: dict[str, Any] = said(look(log=log, **pod))
    document["rollout"]["wanted"] = wanted
    document["pods"] = document["pods"] if wanted else []
    return document


STUCK = pods(log=("loading", "gguf_init: invalid magic characters"), uid="u1",
             stuck="CrashLoopBackOff", restarts=3)  # fmt: skip
NEW = pods(uid="u2", age_s=1.0)
RESTART = {"answers": {"kube restart": {"restarted": True, "generation": 0, "container": "engine",
                                        "change": None}}}  # fmt: skip
DOCTOR = "deploys/doctor.py"
LIBRARY = {"says library look": said(library_look())}
SCENARIOS = {
    "doctor": scenario(DOCTOR, "-y", *ASK, faults={
        **LIBRARY, "says kube look": NEW, "says kube answer": YES}),
    "doctor silent": scenario(DOCTOR, "-y", *ASK, faults={
        **LIBRARY, "says kube look": STUCK, "says kube answer": NO}),
    "serves": scenario(SERVE, "-y", *ASK, faults={
        "says kube look": NEW, "says kube answer": YES}),
    "stopped": scenario(SERVE, "-y", *ASK, faults={
        "says kube look": [pods(0), NEW], "says kube answer": [NO, YES]}),
    "stopped dry": scenario(SERVE, "--dry", *ASK, faults={"says kube look": pods(0)}),
    "loop": scenario(SERVE, "-y", *ASK, faults={
        "says kube look": [pods(0), STUCK], "says kube answer": NO}),
    "stuck": scenario(SERVE, "-y", *ASK, faults={
        "says kube look": [STUCK, NEW], "says kube answer": YES, **RESTART}),
    "dies": scenario(SERVE, "-y", *ASK, faults={
        "says kube look": [pods(0), pods(uid="u2", log=("CUDA error: out of memory",))],
        "says kube answer": DEAD}),
    "model": scenario(SERVE, "-y", *ASK, "--data", MODELS, faults={
        "says kube look": pods(0), "says models look": FILES}),
    "limit": scenario(SERVE, "-y", *ASK, faults={"says kube look": said(look("0m"))}),
    "serve where": scenario(SERVE, "-y", faults={"says kube look": pods(0)}),
    "verify": scenario(VERIFY, "-y", *URL, faults={"says answer look": YES}),
    "verify starting": scenario(VERIFY, "-y", *ASK, faults={
        "says kube look": NEW, "says kube answer": [NO, YES]}),
    "verify late": scenario(VERIFY, "-y", *URL, faults={
        "says kube look": pods(uid="u2", age_s=601.0), "says answer look": NO}),
    "verify loop": scenario(VERIFY, "-y", *URL, faults={
        "says kube look": STUCK, "says answer look": NO}),
    "verify where": scenario(VERIFY, "-y"),
    "two ways": scenario(VERIFY, "-y", *URL, "--data", "port=8000"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_what_serves_is_not_touched(ran: Runs) -> None:
    done = ran["serves"]
    assert done.status == 0 and done.changing == (), done.output
    assert "qwen answers at http://10.96.0.9:8000: qwen answered in 0.7 s" in done.output


def test_a_stopped_deployment_is_started_and_waited_for(ran: Runs) -> None:
    dry, done = ran["stopped dry"], ran["stopped"]
    assert dry.status == 0 and "0 pods become 1" in dry.output and dry.changing == ()
    assert done.steps == ["lab1 apply kube", "lab1 close COMMITTED"], done.output
    assert done.changing[0].request["steps"][0]["replicas"] == 1
    assert "no completion yet: Connection refused" in done.output


def test_a_crash_loop_ends_the_wait_at_once_and_nothing_runs_again(ran: Runs) -> None:
    """Incidents A2, A4: with the container's last lines, not after the budget of ten minutes."""
    done = ran["loop"]
    assert done.status == 1 and "CrashLoopBackOff, 3 restarts" in done.output
    assert "invalid magic characters" in done.output
    assert done.steps == ["lab1 apply kube", "lab1 undo"]


def test_a_stuck_pod_starts_anew(ran: Runs) -> None:
    done = ran["stuck"]
    assert done.status == 0 and "it starts anew" in done.output, done.output
    assert "Deployment ai/lucebox was restarted" in done.output
    assert "qwen answers at" in done.output


def test_an_engine_that_dies_at_its_first_request_is_not_ready(ran: Runs) -> None:
    """Incident A5."""
    done = ran["dies"]
    assert done.status == 1 and "dflash daemon has exited unexpectedly" in done.output
    assert "CUDA error: out of memory" in done.output
    assert done.steps == ["lab1 apply kube", "lab1 undo"]


def test_serve_is_gated_on_model_files_and_limits_before_the_pod_starts(ran: Runs) -> None:
    """Incidents A2 and A3."""
    ran["model"].refused("model-file", "/draft.safetensors")
    assert "it is gguf; its loader reads safetensors" in ran["model"].output
    ran["limit"].refused("gpu-limit", "is '0m'")


def test_verify_waits_while_a_pod_starts_and_no_longer(ran: Runs) -> None:
    assert ran["verify"].status == 0 and "qwen answers at" in ran["verify"].output
    starting = ran["verify starting"]
    assert starting.status == 0 and "no completion yet" in starting.output, starting.output
    ran["verify late"].refused("qwen does not answer at http://10.96.0.10:8000: Connection refused")
    loop = ran["verify loop"]
    assert loop.status == 1 and "CrashLoopBackOff, 3 restarts" in loop.output
    assert "invalid magic characters" in loop.output and "Traceback" not in loop.output


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("verify where", "verify needs model"),
        ("serve where", "serve needs model"),
        ("two ways", "url: and service or port; allowed: one of them"),
    ],
)
def test_how_to_ask_must_be_said(ran: Runs, name: str, part: str) -> None:
    ran[name].refused(part)


def test_doctor_asks_for_an_answer_too(ran: Runs) -> None:
    assert ran["doctor"].status == 0, ran["doctor"].output
    silent = ran["doctor silent"]
    silent.refused("2 finding(s) block serving, the likeliest cause first: pod-stuck")
    assert "block no-answer" in silent.output and "Service lucebox" in silent.output
