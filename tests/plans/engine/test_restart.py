"""restart: its order, what it takes up, and what it leaves to the operator who is at it."""

from __future__ import annotations

import json

from deploys.plans.rig import files_in
from operations.run import operator
from schema.plan import Plan
from schema.render_engine import NODE_PATH
from schema.snapshot import ComputeProcess
from tests.plans.support import scenario
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Snapshots,
    Table,
    data,
    done,
    each_row,
    quiet,
    refused,
    serving,
    tiny_plan,
)
from tests.unit.builders.host_parts import change, discrete_gpu
from tests.unit.builders.rigs import healthy, put

CUT_OFF = "20260530T065800Z-restart-1a2b"
NOTHING: dict[str, object] = {
    "verdict": "nothing", "ended": [], "spared": [], "ports": [], "evidence": "",
    "memory_before": {}, "memory_after": {}, "unit": None, "took_s": 0.1,
}  # fmt: skip
ANSWERS = {"reap": NOTHING, "shm": {"removed": [], "kept": [], "changed": False},
           "caches": {"verdict": "nothing", "before": {}, "after": {}}}  # fmt: skip
FAULTS = {f"{name}:answers": ANSWERS for name in (HEAD, WORKER)}


def journals(**status: str) -> scenario.Seen:
    """The cut off restart's status on each node; its run wrote there a minute ago."""

    def make(plan: Plan) -> Snapshots:
        seen = dict(serving(plan))
        for name, word in zip((HEAD, WORKER), (status["head"], status["worker"]), strict=True):
            now = seen[name].identity.clock_unix_s
            row = change(word, id=CUT_OFF, deploy="restart", operator=status.get("by", "milo@x"))
            young = row.model_copy(
                update={"saved_unix_s": now - 60, "boot_id": seen[name].identity.boot_id}
            )
            seen[name] = put(seen[name], "journal.changes", (young,))
        return seen

    return make


def old(of: scenario.Seen) -> scenario.Seen:
    """The same, of a run that wrote nothing for two hours."""

    def make(plan: Plan) -> Snapshots:
        seen = dict(of(plan))
        for name in (HEAD, WORKER):
            past = seen[name].identity.clock_unix_s - 7200
            seen[name] = put(seen[name], "journal.changes.0.saved_unix_s", past)
        return seen

    return make


def as_throughput(plan: Plan) -> Snapshots:
    """The pair as `serve --data profile=throughput` leaves it."""
    return serving(tiny_plan(str(plan.rig.head.lan_address), profile="throughput"))


def another_recipe(plan: Plan) -> Snapshots:
    """The head was set up by `serve --data recipe=X`."""
    seen = dict(serving(plan))
    files = []
    for file in files_in(seen[HEAD]).values():
        if file.path == NODE_PATH:
            document = json.loads(file.content or "")
            document["endpoint"]["model"] = "another"
            file = file.model_copy(update={"content": json.dumps(document)})
        files.append(file)
    seen[HEAD] = put(seen[HEAD], "files", tuple(files))
    return seen


def held_card(plan: Plan) -> Snapshots:
    """The head's engine is stopped, and another program holds the card that it would get."""
    seen = dict(healthy(plan))
    holder = ComputeProcess(gpu_uuid="GPU-0", pid=77, process_name="python3", used_mib=15000,
                            start_ticks=1, container_id=None)  # fmt: skip
    seen[HEAD] = put(seen[HEAD], "gpus.gpus", (discrete_gpu(0, 311),))
    seen[HEAD] = put(seen[HEAD], "gpus.processes", (holder,))
    return seen


def run(seen: scenario.Seen, *pairs: str, deploy: str = "restart") -> Scenario:
    """A scenario whose engine answers."""
    words = (f"deploys/{deploy}.py", "-y", *data(*pairs))
    return Scenario(words, seen, faults=FAULTS, answers=Reply)


OPEN = {"head": "OPEN", "worker": "OPEN"}
BY_ID = f"change={CUT_OFF}"
# The engine loads for minutes, while only the open change tells that somebody is at it.
LIVE = refused("milo@x may still be at work", CUT_OFF, f"--data {BY_ID}")
# Nothing goes down for a proof that would ask the wrong model.
OTHER = refused("other-recipe", "set up to serve another, not tiny", "--data recipe=NAME")
TABLE: Table = {
    # the operator comes by a jump host, and gets no connection to the port
    "no way here": (Scenario(("deploys/restart.py", "-y"), faults={**FAULTS,
        f"{HEAD}:says engine answer": {"answered": True, "detail": "tiny answered in 0.3 s",
                                       "final": False, "model": "tiny"}}), done(
        f"tiny answered in 0.3 s, asked on {HEAD} itself", "this machine cannot reach 127.",
        never=("ROLLED_BACK",))),
    "dry": (Scenario(("deploys/restart.py", "--dry"), faults=FAULTS), quiet(
        *(f"[{name}] {what} rigbook-engine.service"
          for name in (HEAD, WORKER) for what in ("stop", "start")))),
    "restart": (run(serving), done()),
    "live": (run(journals(**OPEN)), LIVE),
    # one that was cut off is taken up by its own operator at once; by another one when nobody
    # can be at it any more
    "own": (run(journals(**OPEN, by=operator())), done()),
    "dead": (run(old(journals(**OPEN))), done()),
    # the line is of what runs, not of what this run would ask for
    "restart of another profile": (run(as_throughput), done(
        "cold restart: tiny (throughput) answers at", never=("tiny (balanced)",))),
    # node takes no step of it there: the head goes back too, then a change of its own
    "undone there": (run(old(journals(head="OPEN", worker="ROLLED_BACK"))), done(
        f"went back on {WORKER} and is open on {HEAD}: undoes it there, too", "COMMITTED")),
    # it was started, waited a minute for the memory, and the change stayed open
    "held card": (
        Scenario(
            ("deploys/restart.py", "-y",
             *data("waive=image-missing,weights-missing", "reason=a stand-in")),
            held_card, data={"recipe": "deepseek-v4-flash"}, faults=FAULTS,
        ),
        refused("memory-short", "sudo kill 77"),
    ),
    # it was proven, and the run died between the two journals
    "blessed there": (run(old(journals(head="COMMITTED", worker="OPEN"))), done(
        f"is proven on {HEAD} and open on {WORKER}: closes it there")),
    "another recipe": (run(another_recipe), OTHER),
    "reboot another recipe": (run(another_recipe, deploy="reboot"), OTHER),
    "rollback live": (run(journals(**OPEN), deploy="rollback"), LIVE),
    # the operator has looked, and says so
    "rollback live by id": (run(journals(**OPEN), BY_ID, deploy="rollback"), done()),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_down_head_first_and_up_worker_first(ran: Runs) -> None:
    steps = ran["restart"].steps
    assert [step for step in steps if step.split()[1] in ("apply", "open")] == [
        "lab2 open", "lab1 apply stop", "lab2 apply stop", "lab2 apply start", "lab1 apply start",
    ]  # fmt: skip
    assert [step for step in steps if "reap" in step], steps
    assert sorted(steps[-2:]) == ["lab1 close COMMITTED", "lab2 close COMMITTED"]


def test_what_is_taken_up_goes_on_as_the_same_change(ran: Runs) -> None:
    for each in ran.each(("own", "dead")):
        assert {c.request["change"]["id"] for c in each.changing if c.verb == "apply"} == {CUT_OFF}
