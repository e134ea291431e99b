"""restart: its order, what it takes up, and what it leaves to the operator who is at it."""

from __future__ import annotations

import json

import pytest

from operations.change.run import operator
from schema.desired.plan import Plan
from schema.render.engine_files import NODE_PATH
from tests.plans.support import rigs
from tests.plans.support.engine_double import Reply
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, Snapshots, serving
from tests.unit.builders.host_parts import change

RESTART, REBOOT, ROLLBACK = "deploys/restart.py", "deploys/reboot.py", "deploys/rollback.py"
CUT_OFF = "20260530T065800Z-restart-1a2b"
NOTHING = {"verdict": "nothing", "ended": [], "spared": [], "ports": [], "evidence": "",
           "memory_before": {}, "memory_after": {}, "unit": None, "took_s": 0.1}  # fmt: skip
ANSWERS = {"reap": NOTHING, "shm": {"removed": [], "kept": [], "changed": False},
           "caches": {"verdict": "nothing", "before": {}, "after": {}}}  # fmt: skip
FAULTS = {f"{name}:answers": ANSWERS for name in (HEAD, WORKER)}


def journals(**status: str) -> rigs.Seen:
    """The cut off restart's status on each node; its run wrote there a minute ago."""

    def make(plan: Plan) -> Snapshots:
        seen = dict(serving(plan))
        for name, word in zip((HEAD, WORKER), (status["head"], status["worker"]), strict=True):
            now = seen[name].identity.clock_unix_s
            row = change(word, id=CUT_OFF, deploy="restart", operator=status.get("by", "milo@x"))
            young = row.model_copy(
                update={"saved_unix_s": now - 60, "boot_id": seen[name].identity.boot_id}
            )
            seen[name] = rigs.put(seen[name], "journal.changes", (young,))
        return seen

    return make


def old(of: rigs.Seen) -> rigs.Seen:
    """The same, of a run that wrote nothing for two hours."""

    def make(plan: Plan) -> Snapshots:
        seen = dict(of(plan))
        for name in (HEAD, WORKER):
            past = seen[name].identity.clock_unix_s - 7200
            seen[name] = rigs.put(seen[name], "journal.changes.0.saved_unix_s", past)
        return seen

    return make


def another_recipe(plan: Plan) -> Snapshots:
    """The head was set up by `serve --data recipe=X`."""
    seen = dict(serving(plan))
    files = []
    for file in seen[HEAD].files:
        if file.path == NODE_PATH:
            document = json.loads(file.content or "")
            document["endpoint"]["model"] = "another"
            file = file.model_copy(update={"content": json.dumps(document)})
        files.append(file)
    seen[HEAD] = rigs.put(seen[HEAD], "files", tuple(files))
    return seen


def run(seen: rigs.Seen, deploy: str = RESTART, *more: str) -> Scenario:
    """A scenario whose engine answers."""
    return Scenario((deploy, "-y", *more), seen, faults=FAULTS, answers=Reply)


BOTH_OPEN = {"head": "OPEN", "worker": "OPEN"}
SCENARIOS = {
    "dry": Scenario((RESTART, "--dry"), faults=FAULTS),
    "restart": run(serving),
    "live": run(journals(**BOTH_OPEN)),
    "own": run(journals(**BOTH_OPEN, by=operator())),
    "dead": run(old(journals(**BOTH_OPEN))),
    "undone there": run(old(journals(head="OPEN", worker="ROLLED_BACK"))),
    "blessed there": run(old(journals(head="COMMITTED", worker="OPEN"))),
    "another recipe": run(another_recipe),
    "reboot another recipe": run(another_recipe, REBOOT),
    "rollback live": run(journals(**BOTH_OPEN), ROLLBACK),
    "rollback live by id": run(journals(**BOTH_OPEN), ROLLBACK, "--data", f"change={CUT_OFF}"),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_a_dry_run_shows_the_order_and_sends_nothing(ran: Runs) -> None:
    dry = ran["dry"]
    assert dry.status == 0 and dry.changing == (), dry.output
    for name in (HEAD, WORKER):
        assert f"[{name}] stop rigbook-engine.service" in dry.stderr
        assert f"[{name}] start rigbook-engine.service" in dry.stderr


def test_down_head_first_and_up_worker_first(ran: Runs) -> None:
    restart = ran["restart"]
    assert restart.status == 0, restart.output
    units = [step for step in restart.steps if step.split()[1] == "apply"]
    assert units == [
        "lab1 apply stop", "lab2 apply stop", "lab2 apply start", "lab1 apply start",
    ]  # fmt: skip
    assert [s for s in restart.steps if "reap" in s], restart.steps
    assert sorted(restart.steps[-2:]) == ["lab1 close COMMITTED", "lab2 close COMMITTED"]


@pytest.mark.parametrize("name", ["own", "dead"])
def test_a_restart_that_was_cut_off_is_taken_up(ran: Runs, name: str) -> None:
    """By its own operator at once; by another one when nobody can be at it any more."""
    assert ran[name].status == 0, ran[name].output
    ids = {c.request["change"]["id"] for c in ran[name].changing if c.verb == "apply"}
    assert ids == {CUT_OFF}


@pytest.mark.parametrize("name", ["live", "rollback live"])
def test_another_operators_run_is_left_alone(ran: Runs, name: str) -> None:
    """The engine loads for minutes, while only the open change tells that somebody is at it."""
    ran[name].refused("milo@x may still be at work", CUT_OFF, f"--data change={CUT_OFF}")


def test_named_by_its_id_it_is_undone(ran: Runs) -> None:
    """The operator has looked, and says so."""
    assert ran["rollback live by id"].status == 0, ran["rollback live by id"].output


def test_a_change_that_another_node_has_closed_is_not_taken_up(ran: Runs) -> None:
    """Node takes no step of it there: the head would be stopped, and stay so."""
    undone = f"OPEN on {HEAD} and ROLLED_BACK on {WORKER}"
    ran["undone there"].refused(undone, f"rollback.py -y --data change={CUT_OFF}")
    blessed = f"OPEN on {WORKER} and COMMITTED on {HEAD}"
    ran["blessed there"].refused(blessed, f"on {WORKER}: sudo rignode close")


@pytest.mark.parametrize("name", ["another recipe", "reboot another recipe"])
def test_what_is_installed_must_be_what_is_asked_for(ran: Runs, name: str) -> None:
    """Nothing goes down for a proof that would ask the wrong model."""
    ran[name].refused("other-recipe", "set up to serve another, not tiny", "--data recipe=NAME")
