"""serve and verify of a Kubernetes rig: what is started, waited for, and what ends the wait."""

from __future__ import annotations

from typing import Any

from tests.plans.support import scenario
from tests.plans.support.scenario import (
    Runs,
    Scenario,
    Table,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
    said,
)
from tests.unit.builders.host_parts import kube_look, library_look

ASK = ("service=lucebox", "port=8000", "model=qwen")
URL = ("url=http://10.96.0.10:8000", "model=qwen")
YES = {"answered": True, "detail": "qwen answered in 0.7 s", "final": False, "model": "qwen",
       "where": "http://10.96.0.9:8000"}  # fmt: skip
NO = {**YES, "answered": False, "detail": "Connection refused", "model": "", "where": ""}
KEYED = {**NO, "detail": "HTTP 401: the engine lives and wants a key: set key_file", "final": True,
         "wants_key": True}  # fmt: skip
DEAD = {**NO, "detail": "HTTP 500: dflash daemon has exited unexpectedly", "final": True}
MODELS = 'models={"/m.gguf": "gguf", "/draft.safetensors": "safetensors"}'
FILES = {"files": [
    {"path": "/m.gguf", "size": 9, "format": "gguf", "said": "", "broken": None},
    {"path": "/draft.safetensors", "size": 9, "format": "gguf", "said": "", "broken": None},
]}  # fmt: skip


def pods(wanted: int = 1, log: tuple[str, ...] = (), **pod: Any) -> dict[str, Any]:
    """The Deployment with one pod (none where none is wanted)."""
    document: dict[str, Any] = said(kube_look(log=log, **pod))
    document["rollout"]["wanted"] = wanted
    document["pods"] = document["pods"] if wanted else []
    return document


STUCK = pods(log=("loading", "gguf_init: invalid magic characters"), uid="u1",
             stuck="CrashLoopBackOff", restarts=3)  # fmt: skip
NEW = pods(uid="u2", age_s=1.0)
AGAIN = {"restarted": True, "generation": 0, "container": "engine", "change": None}
RESTART: dict[str, object] = {"answers": {"kube restart": AGAIN}}
LIBRARY = said(library_look())
LOOP = ("CrashLoopBackOff, 3 restarts", "invalid magic characters")


def run(
    deploy: str, *pairs: str, how: str = "-y", more: dict[str, object] | None = None,
    **says: object,
) -> Scenario:  # fmt: skip
    """A runbook on the stand-in, whose host says to `kube_look=` and the like what is given."""
    faults = {f"says {verb.replace('_', ' ')}": answer for verb, answer in says.items()}
    words = (f"deploys/{deploy}.py", how, *data(*pairs))
    return scenario.scenario(*words, faults={**faults, **(more or {})})


RESET = {"container": "engine", "values": {"X": "1"}, "edits": {}, "webhook": False,
         "webhook_file": None, "differs": ["X is '0m', it was set to '1'"]}  # fmt: skip
STARTED, UNDONE = (["lab1 apply kube", f"lab1 {end}"] for end in ("close COMMITTED", "undo"))
TABLE: Table = {
    "doctor": (run("doctor", *ASK, library_look=LIBRARY, kube_look=NEW, kube_answer=YES), done()),
    "doctor silent": (
        run("doctor", *ASK, library_look=LIBRARY, kube_look=STUCK, kube_answer=NO),
        refused("2 finding(s) block serving, the likeliest cause first: pod-stuck",
                says=("block no-answer", "Service lucebox"))),
    "doctor drift": (
        run("doctor", *ASK, library_look=LIBRARY, kube_look={**NEW, "guard": RESET},
            kube_answer=YES),
        refused("1 finding(s) block", "gpu-limit-drift", says=("X is '0m', it was set to '1'",))),
    "serves": (run("serve", *ASK, kube_look=NEW, kube_answer=YES), quiet(
        "qwen answers at http://10.96.0.9:8000: qwen answered in 0.7 s")),
    # 401 is no completion, and a restart gives it no key
    "keyed": (run("serve", *ASK, kube_look=pods(age_s=9999.0), kube_answer=KEYED), refused(
        "qwen gives no proof: HTTP 401: the engine lives and wants a key: set key_file",
        "nothing was changed")),
    "verify keyed": (run("verify", *ASK, "key_file=/root/llm.key", kube_look=NEW,
        kube_answer=KEYED), refused("HTTP 401: the engine lives and wants a key")),
    "doctor keyed": (
        run("doctor", *ASK, library_look=LIBRARY, kube_look=NEW, kube_answer=KEYED),
        refused("1 finding(s) block serving", says=("block no-answer", "evidence: HTTP 401",
                "mend:     set key_file in group_data"))),
    "stopped": (run("serve", *ASK, kube_look=[pods(0), NEW], kube_answer=[NO, YES]), done(
        "no completion yet: Connection refused", steps=STARTED)),
    "stopped dry": (run("serve", *ASK, how="--dry", kube_look=pods(0)), quiet("0 pods become 1")),
    # A2, A4: with the container's last lines, not after the budget of ten minutes
    "loop": (run("serve", *ASK, kube_look=[pods(0), STUCK], kube_answer=NO), failed(
        *LOOP, steps=UNDONE)),
    "stuck": (run("serve", *ASK, kube_look=[STUCK, NEW], kube_answer=YES, more=RESTART), done(
        "it starts anew", "Deployment ai/lucebox was restarted", "qwen answers at")),
    "dies": (
        run("serve", *ASK, kube_answer=DEAD,
            kube_look=[pods(0), pods(uid="u2", log=("CUDA error: out of memory",))]),
        failed("dflash daemon has exited unexpectedly", "CUDA error: out of memory",
               steps=UNDONE)),
    # A2, A3: gated on model files and limits before the pod starts
    "model": (run("serve", *ASK, MODELS, kube_look=pods(0), models_look=FILES), refused(
        "model-file", "/draft.safetensors", says=("it is gguf; its loader reads safetensors",))),
    "limit": (run("serve", *ASK, kube_look=said(kube_look("0m"))), refused("gpu-limit", "is '0m'")),
    "serve where": (run("serve", kube_look=pods(0)), refused("serve needs model")),
    "verify": (run("verify", *URL, kube_answer=YES), done("qwen answers at")),
    # it waits while a pod starts, and no longer
    "verify starting": (run("verify", *ASK, kube_look=NEW, kube_answer=[NO, YES]), done(
        "no completion yet")),
    "verify late": (
        run("verify", *URL, kube_look=pods(uid="u2", age_s=601.0), kube_answer=NO),
        refused("qwen does not answer at http://10.96.0.10:8000: Connection refused")),
    "verify loop": (run("verify", *URL, kube_look=STUCK, kube_answer=NO), failed(*LOOP)),
    "verify where": (run("verify"), refused("verify needs model")),
    "two ways": (run("verify", *URL, "port=8000"), refused(
        "url: and service or port; allowed: one of them")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_a_stopped_deployment_gets_its_pods(ran: Runs) -> None:
    assert ran["stopped"].changing[0].request["steps"][0]["replicas"] == 1


def test_an_engine_that_dies_at_its_first_request_is_not_ready(ran: Runs) -> None:
    """Incident A5."""
    TABLE["dies"][1].check(ran["dies"])
