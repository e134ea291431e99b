"""stop ends the engine in order and proves it; verify asks the endpoint and no host."""

from __future__ import annotations

from tests.plans.support import rigs
from tests.plans.support.engine_double import METRICS, Reply, completion
from tests.plans.support.scenario import HEAD, INVENTORY, WORKER, Runs, Scenario, serving
from tests.plans.support.table import Ends, done, each_row, failed, quiet, refused
from tests.unit.builders.snapshots import healthy

STOP = "deploys/stop.py"
VERIFY = ("deploys/verify.py", "-y")
SURVIVOR = rigs.broken(
    serving, *((name, "units.0.active_state", "failed") for name in (HEAD, WORKER))
)
TABLE = {
    "stop dry": (Scenario((STOP, "--dry")), quiet(
        *(f"[{name}] stop rigbook-engine.service and its container" for name in (HEAD, WORKER)))),
    "stop": (Scenario((STOP, "-y")), done(
        f"stopped on {HEAD}, {WORKER}; ports are free",
        steps=["lab1 apply stop", "lab2 apply stop", "lab1 close COMMITTED",
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
               steps=["lab1 apply stop", "lab1 beat"])),
    # the answer is the evidence; the metrics are counted
    "answers": (Scenario(VERIFY, answers=Reply, metrics=METRICS), quiet(
        "tiny answers at http://", "6 characters", "2 vllm: metrics at", asks=[])),
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
