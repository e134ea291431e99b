"""serve on a rig that runs and gives no answer: hung, or busy with others."""

from __future__ import annotations

import dataclasses

import pytest

from deploys.plans import serve
from deploys.plans.rig import units_in
from facts.endpoint import KEY_VARIABLE, Answer, Endpoint, probe
from schema.plan import UNIT, Plan
from schema.snapshot import Identity
from tests.plans.support import scenario
from tests.plans.support.doubles import EngineDouble, Reply
from tests.plans.support.fakehost import NODES_KEY
from tests.plans.support.scenario import (
    HEAD,
    Runs,
    Scenario,
    Snapshots,
    Table,
    data,
    done,
    each_row,
    quiet,
    refused,
    tiny_plan,
)
from tests.plans.support.scenario import serving as serving_rig
from tests.unit.builders.host_parts import port
from tests.unit.builders.rigs import healthy, put

LATE = Answer(False, "ReadTimeout", late=True)
REFUSED = Answer(False, "ConnectError")


@pytest.mark.parametrize(
    ("answer", "made", "restarts"),
    [
        (LATE, 120.0, False),  # a queue: every client would be cut off
        (LATE, 0.0, True),  # nothing moves: it hangs
        (LATE, None, True),  # it does not even say
        (REFUSED, 120.0, True),
        (Answer(False, "HTTP 500", final=True), 120.0, True),
        (Answer(False, "401", final=True, alive=True), None, False),
    ],
)
def test_only_a_hang_is_restarted(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, made: float | None, restarts: bool
) -> None:
    plan = tiny_plan()
    monkeypatch.setattr(serve, "_made_meanwhile", lambda _: made)
    seen = serving_rig(plan)
    identity = seen[HEAD].identity
    assert isinstance(identity, Identity)
    up = identity.clock_unix_s - (units_in(seen[HEAD])[UNIT].since_unix_s or 0)
    expect = plan.recipe.expect.model_copy(update={"start_budget_s": int(up) - 1})
    recipe = plan.recipe.model_copy(update={"expect": expect})
    plan = dataclasses.replace(plan, recipe=recipe)
    assert serve._too_late(plan, seen, answer) is restarts


@pytest.mark.parametrize("ours", [False, True])
def test_the_doctors_look_takes_the_key_to_our_engine_alone(
    monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """Else a guarded engine would be down for the doctor, and up for verify."""
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    with EngineDouble(Reply) as engine:
        probe(Endpoint(engine.url, "tiny", ours=ours))
    assert len(engine.keys) > 2 and set(engine.keys) == {"Bearer s3cret" if ours else None}


GUARDED = {KEY_VARIABLE: "s3cret"}
SAYS = {"answered": True, "detail": "tiny answered in 0.3 s", "final": False, "model": "tiny"}
HERS = {f"{HEAD}:says engine answer": SAYS}
NO_WAY = f"{HEAD} answers, and this machine cannot reach 127."
HIS_ANSWER = f"tiny answered in 0.3 s, asked on {HEAD} itself"
VERIFY, SERVE = ("deploys/verify.py", "-y"), ("deploys/serve.py", "-y")


def long_up(plan: Plan) -> Snapshots:
    """Serving for six hours: past any start budget."""
    seen = serving_rig(plan)
    identity = seen[HEAD].identity
    return {**seen, HEAD: put(seen[HEAD], "units.0.since_unix_s", identity.clock_unix_s - 21600)}


def stranger(plan: Plan) -> Snapshots:
    """A user's own unit of our name has the port: its cgroup is below user@1000.service."""
    seen = serving_rig(plan)
    held = port(8000, pid=77, process="python3", unit="user@1000.service", container_id=None)
    return {**seen, HEAD: put(seen[HEAD], "ports.1", held)}


HOLDERS = {"ours": (serving_rig, quiet()), "a stranger": (stranger, refused())}
RUNBOOKS = {"verify": VERIFY, "serve": SERVE, "doctor": ("deploys/doctor.py", "-y")}


# the operator reaches the hosts by a jump host, and nothing else there: nobody listens for him
TABLE: Table = {
    # stopped, started anew and taken back after the whole budget
    "serve, no way here": (Scenario(SERVE, long_up, faults=HERS), quiet(NO_WAY, HIS_ANSWER)),
    "dry, no way here": (Scenario((SERVE[0], "--dry"), long_up, faults=HERS), quiet(
        NO_WAY, never=("stop rigbook-engine",))),
    "serve starts, no way here": (Scenario(SERVE, healthy, faults=HERS), done(
        "tiny (balanced) answers at", HIS_ANSWER, NO_WAY, never=("ROLLED_BACK",))),
    "verify, no way here": (Scenario(VERIFY, faults=HERS), quiet(
        NO_WAY, HIS_ANSWER, "not looked at: its metrics")),
    "doctor, no way here": (Scenario(("deploys/doctor.py", "-y"), faults=HERS), quiet(
        "warn no-way-here", NO_WAY, never=("no-answer",))),
    # the node's own engine gives nothing either: as before
    "silent there too": (Scenario((SERVE[0], "--dry"), long_up), quiet(
        "running, but no real answer: Connection refused, asked on @fake/lab1 itself")),
    "busy there": (Scenario((SERVE[0], "--dry"), long_up, faults={f"{HEAD}:says engine answer": {
        "answered": False, "detail": "no answer in time", "final": False, "model": "",
        "late": True, "made": 40.0}}), quiet(
        "40 tokens for others meanwhile", never=("stop rigbook-engine",))),
    # who holds the port decides who gets the key, and then a 401 asks for it
    **{f"{name}, {who}": (Scenario(words, rig, answers=Reply, key="s3cret", env=GUARDED), ends)
       for name, words in RUNBOOKS.items() for who, (rig, ends) in HOLDERS.items()},
    # known before anything is stopped
    "no docker program": (Scenario((*SERVE, *data("profile=throughput")), scenario.broken(
        serving_rig, (HEAD, "units.0.exec_start_exists", False)), answers=Reply), refused(
        "unit-ghost", "starts a program that does not exist: /usr/bin/docker")),
    # the operator has no key, the node has one
    "another key": (
        Scenario(VERIFY, answers=Reply, key="s3cret",
                 env={KEY_VARIABLE: "0ld", NODES_KEY: "s3cret"}),
        quiet(f"{HEAD} answers, and takes no question of this machine", "HTTP 401")),
    "no key anywhere": (
        Scenario(VERIFY, answers=Reply, key="s3cret"),
        refused("wants a key", f"set {KEY_VARIABLE} to it")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


@pytest.mark.parametrize("name", RUNBOOKS)
def test_whoever_holds_the_port_gets_no_key(ran: Runs, name: str) -> None:
    """A local user's listener: he saw the key at each doctor, verify and serve."""
    assert not any(ran[f"{name}, a stranger"].keys)
    ours = ran[f"{name}, ours"]
    assert ours.keys[0] is None and "Bearer s3cret" in ours.keys, ours.output
    assert ran["doctor, a stranger"].keys
