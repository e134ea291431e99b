"""stop ends the engine in order and proves it; verify asks the endpoint, and looks whose it is."""

from __future__ import annotations

from schema.desired.plan import Plan
from schema.observed.snapshot import NodeSnapshot
from tests.plans.support import rigs
from tests.plans.support.engine_double import METRICS, Reply, completion
from tests.plans.support.launched import former_answers
from tests.plans.support.scenario import (
    HEAD,
    INVENTORY,
    WORKER,
    Runs,
    Scenario,
    Snapshots,
    serving,
)
from tests.plans.support.table import Ends, done, each_row, failed, quiet, refused
from tests.unit.builders.snapshots import healthy

STOP = "deploys/stop.py"
VERIFY = ("deploys/verify.py", "-y")
SURVIVOR = rigs.broken(
    serving, *((name, "units.0.active_state", "failed") for name in (HEAD, WORKER))
)
HALF = rigs.broken(serving, (WORKER, "units.0.active_state", "failed"))


def former(plan: Plan) -> Snapshots:
    """The trial of fault 55: a former setup's engine has the port of ours."""
    seen = dict(serving(plan))
    now = seen[HEAD].model_dump(mode="json")
    former_answers(now, "active/running")
    return {**seen, HEAD: NodeSnapshot.model_validate(now)}


TABLE = {
    "stop dry": (Scenario((STOP, "--dry")), quiet(
        *(f"[{name}] stop rigbook-engine.service and its container" for name in (HEAD, WORKER)))),
    "stop": (Scenario((STOP, "-y")), done(
        f"stopped on {HEAD}, {WORKER}; ports are free",
        steps=["lab2 open", "lab1 apply stop", "lab2 apply stop", "lab1 close COMMITTED",
               "lab2 close COMMITTED"])),
    "stopped": (Scenario((STOP, "-y"), healthy), quiet(asks=["snapshot", "snapshot"])),
    # dockerd hung during the stop: the unit is failed, the container holds memory and ports
    "survivor": (Scenario((STOP, "-y"), SURVIVOR), Ends(
        None, (), (f"{HEAD}: container rigbook-engine", "sudo docker rm -f rigbook-engine"))),
    # half a stop is told, with the way back; the worker is left alone
    "stop refused": (
        Scenario((STOP, "-y"), faults={
            f"{HEAD}:apply stop": {"error": "systemctl stop: timeout", "code": "unit"}}),
        failed("systemctl stop: timeout", "stays OPEN; undo it with: deploys/rollback.py",
               steps=["lab2 open", "lab1 apply stop", {"lab1 beat", "lab2 beat"}])),
    # the worker's pair check would start it anew: it has to know, before the head stops
    "worker locked": (
        Scenario((STOP, "-y"), faults={f"{WORKER}:open": {"error": "held", "code": "locked"}}),
        failed(f"{WORKER}: apply: held", steps=["lab2 open", {"lab1 beat", "lab2 beat"}])),
    # the answer is the evidence; the metrics are counted
    "answers": (Scenario(VERIFY, answers=Reply, metrics=METRICS), quiet(
        "tiny answers at http://", "6 characters", "2 vllm: metrics at", asks=["snapshot"] * 4)),
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
