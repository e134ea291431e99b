"""adopt --data take=true: what is sent, in which order, and what a failing step leads to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

from schema.hardware import Former
from schema.plan import Plan
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    Table,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
    serving,
    with_changes,
)
from tests.unit.builders import host_parts
from tests.unit.builders.host_parts import change
from tests.unit.builders.rigs import healthy, put

TAKE = ("deploys/adopt.py", "-y", *data("take=true"))
ID = "20260530T065800Z-adopt-1a2b"
CONTEXT = {"former": {"node": HEAD, "port": 8000, "model": "tiny", "answered": True,
                      "by": "unit vllm-ds4.service"}}  # fmt: skip
BEFORE = [
    {"lab1 apply unit+restart_policy+crontab+file", "lab2 apply unit+restart_policy+crontab+file"},
    "lab1 apply unit+former_engine",
    "lab2 apply unit+former_engine",
]
STARTED = ["lab2 apply start", "lab1 apply start"]
BLESSED = [{"lab1 close COMMITTED", "lab2 close COMMITTED"}]
BACK = ["lab2 undo", "lab1 undo"]
DIES = {f"{HEAD}:start": "dies"}


def former(head: Former, worker: Former, **faults: Any) -> dict[str, Any]:
    """The faults of hosts with these former setups."""
    return {
        f"{HEAD}:says former": host_parts.former_said(head),
        f"{WORKER}:says former": host_parts.former_said(worker),
        **faults,
    }


def take(head: Former, worker: Former, *words: str, **more: Any) -> Scenario:
    """A take-over of hosts with these former setups."""
    faults = former(head, worker, **more.pop("faults", {}))
    return Scenario(more.pop("how", TAKE) + words, more.pop("seen", healthy), answers=Reply,
                    faults=faults, **more)  # fmt: skip


def left_open(plan: Plan) -> Snapshots:
    """A run that died when the former engine had been ended."""
    seen = dict(healthy(plan))
    for name, snapshot in seen.items():
        sign = snapshot.identity.clock_unix_s - 300
        row = change("OPEN", id=ID, deploy="adopt", operator="milo@x", run="f00",
                     saved_unix_s=sign, beat_unix_s=sign)  # fmt: skip
        seen[name] = put(snapshot, "journal.changes", (row,))
    return seen


def undone(ago: float) -> Seen:
    """A take-over that was given back so many seconds ago."""

    def make(plan: Plan) -> Snapshots:
        seen = dict(healthy(plan))
        for name, snapshot in seen.items():
            closed = snapshot.identity.clock_unix_s - ago
            row = change("ROLLED_BACK", id=ID, deploy="adopt", closed_unix_s=closed)
            seen[name] = put(snapshot, "journal.changes", (row,))
        return seen

    return make


def loading(times: int) -> Callable[[], Reply]:
    """An engine that answers nothing so many times."""
    replies = chain(repeat(Reply("loading", status=503), times), repeat(Reply()))
    return lambda: next(replies)


SEED, SEED_WORKER = host_parts.seed(), host_parts.seed_worker()
RM = host_parts.by_hand().model_copy(update={"engines": (host_parts.engine(inside_of="main"),)})
TWO = Former(engines=(host_parts.engine(), host_parts.engine(pid=900, port=8001)))
NONE = Former()
BY = "unit vllm-ds4.service, crontab /etc/crontab:12, container vllm_ds4"
TABLE: Table = {
    "the seed's": (
        take(SEED, SEED_WORKER),
        done("disable vllm-ds4.service", "restart policy of container vllm_ds4: no",
             "/etc/crontab: comment out line 12", "serves now",
             "it runs with", "the recipe renders the same",
             "end the engine that runs in container vllm_ds4", "port and memory are free",
             f"taken over from {HEAD}: {BY}; {WORKER}: {BY}",
             steps=[*BEFORE, *STARTED, *BLESSED])),
    "compose": (
        take(host_parts.compose(), NONE),
        done("stop container llm-vllm-1", steps=[
            {"lab1 apply restart_policy+file+unit", "lab2 apply file+unit"},
            "lab1 apply container", *STARTED, *BLESSED])),
    "a Deployment": (
        take(host_parts.pod(), NONE),
        done("scale Deployment default/lucebox to 0 pods",
             f"taken over from {HEAD}: Deployment default/lucebox", steps=[
                 {"lab1 apply file+unit", "lab2 apply file+unit"},
                 "lab1 apply kube", *STARTED, *BLESSED])),
    "a Deployment comes back": (
        take(host_parts.pod(), NONE, faults=DIES),
        failed("ROLLED_BACK; tiny of", "serves again", steps=[
            {"lab1 apply file+unit", "lab2 apply file+unit"}, "lab1 apply kube", *STARTED,
            "lab1 systemctl-stop", "lab2 systemctl-stop", *BACK])),
    # its address is not the host's: the node asks in the pod, before and after
    "a pod's own network": (
        take(host_parts.pod(network="pod"), NONE, faults={**DIES, f"{HEAD}:says kube answer": {
            "answered": True, "detail": "9 letters", "final": False, "model": "tiny"}}),
        failed("serves now: @fake/lab1: Deployment default/lucebox",
               "tiny of @fake/lab1: Deployment default/lucebox", "serves again: 9 letters")),
    "a pod of nobody's": (take(host_parts.pod(None), NONE), refused("what made it has to end it")),
    "dry": (
        take(SEED, SEED_WORKER, how=("deploys/adopt.py", "--dry", *data("take=true"))),
        quiet("disable vllm-ds4.service", "end the engine that runs in container vllm_ds4")),
    # ours cannot start: all goes back, and the former engine answers
    "ours dies": (
        take(SEED, SEED_WORKER, faults=DIES),
        failed("stand-in engine: ValueError: no such flag",
               f"ROLLED_BACK; tiny of {HEAD}: {BY}",
               "serves again: 6 characters", steps=[
                   *BEFORE, *STARTED, "lab1 systemctl-stop", "lab2 systemctl-stop", *BACK])),
    # the node's own line, and all goes back, before anything was ended on the worker
    "it does not end": (
        take(SEED, SEED_WORKER, faults={f"{HEAD}:apply unit+former_engine": {
            "error": "pid 7 does not end, not by KILL either", "code": "not_ended"}}),
        failed("pid 7 does not end", "serves again", steps=[*BEFORE[:2], *BACK])),
    "one of two": (
        take(TWO, SEED_WORKER),
        refused("not taken over: @fake/lab1: 2 engines run here (pid 812 on port 8000")),
    "--rm": (take(RM, NONE), refused("made with --rm: a stop removes it")),
    "unread": (
        take(Former(unread=("crontabs: Permission denied",)), NONE),
        refused("not all could be looked at: crontabs: Permission denied")),
    "no answer of the look": (
        Scenario(TAKE, healthy, answers=Reply, faults={f"{HEAD}:says former": {"engines": 7}}),
        refused("not taken over")),
    "nothing there": (take(NONE, NONE), refused("no vLLM runs on this rig", "deploys/serve.py")),
    # a second run
    "ours already": (take(NONE, NONE, seen=serving), quiet("nothing to take over")),
    "taken up": (
        take(NONE, NONE, seen=left_open),
        done(f"takes up change {ID}", "goes on in it", steps=[
            "lab1 claim", "lab2 claim", {"lab1 apply file+unit", "lab2 apply file+unit"},
            *STARTED, *BLESSED])),
    # by the same command again where the former engine still runs
    "taken up early": (
        take(SEED, SEED_WORKER, seen=left_open),
        done(steps=["lab1 claim", "lab2 claim", *BEFORE, *STARTED, *BLESSED])),
    "undone later": (
        Scenario(("deploys/rollback.py", "-y", *data(f"change={ID}")),
                 with_changes(serving, (HEAD, "COMMITTED", ID), (WORKER, "COMMITTED", ID)),
                 answers=Reply, faults={f"{name}:blob": CONTEXT for name in (HEAD, WORKER)}),
        done("ROLLED_BACK; tiny of unit vllm-ds4.service serves again: 6 characters", steps=[
            "lab1 claim", "lab2 claim", "lab1 systemctl-stop", "lab2 systemctl-stop", *BACK])),
    # a rollback that was killed while the former engine loaded: it is waited for
    "it loads": (
        Scenario(("deploys/rollback.py", "-y"), undone(5), answers=loading(2),
                 faults={f"{HEAD}:blob": CONTEXT}),
        done("ROLLED_BACK; tiny of unit vllm-ds4.service serves again: 6 characters", steps=[])),
    "it answers": (
        Scenario(("deploys/rollback.py", "-y"), undone(5), answers=Reply,
                 faults={f"{HEAD}:blob": CONTEXT}),
        quiet("No changes")),
    # long ago: whoever runs that engine may have stopped it
    "long ago": (Scenario(("deploys/rollback.py", "-y"), undone(9999)), quiet("No changes")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_what_served_is_kept_in_the_change_before_anything_is_done(ran: Runs) -> None:
    first = next(c for c in ran["the seed's"].changing if c.verb == "apply")
    kept = first.request["change"]["blob"]["former"]
    assert kept["answered"] and (kept["model"], kept["node"], kept["port"]) == ("tiny", HEAD, 8000)
    assert "vllm-ds4.service" in kept["by"]


def test_it_serves_until_nothing_would_start_it_again(ran: Runs) -> None:
    """Disabled first, on both nodes; the unit is stopped in a later step."""
    sent = [c for c in ran["the seed's"].changing if c.verb == "apply"]
    for command in sent[:2]:
        steps = command.request["steps"]
        former = [s for s in steps if s.get("unit") == host_parts.UNIT]
        assert [(s["enabled"], s["active"]) for s in former] == [(False, None)]
        # ours comes up at a boot only once the former one does not
        names = [s.get("unit") for s in steps]
        assert names.index(host_parts.UNIT) < names.index("rigbook-engine.service")
