"""serve when a step fails on one host: the rig stops as one, and goes back as one."""

from __future__ import annotations

from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, data, each_row, failed
from tests.unit.builders.rigs import healthy

SERVE = ("deploys/serve.py", "-y")
REFUSED = {
    "error": "/etc/rigbook/engine/serve.sh: it was edited meanwhile; nothing was changed",
    "code": "changed_meanwhile",
    "remedy": "look at the file, then run again",
}
BUSY = {
    "error": "another change is open: 20260530T065800Z-restart-0828 (restart, root@vm)",
    "code": "change_open",
}
EDITED = {"error": "edited since", "code": "edited", "remedy": "name it"}
FORMER = (
    "what answers is not this rig's engine: port 8000 of @fake/lab1 is held by pid 77 (python3, "
    "container vllm_ds4), not by rigbook-engine.service",
    "sudo systemctl stop vllm-ds4-head.service && sudo docker stop vllm_ds4",
    "Restart=on-failure of vllm-ds4-head.service starts it again",
)
STARTED = [{"lab1 apply file+unit", "lab2 apply file+unit"}, "lab2 apply start", "lab1 apply start"]
STOPPED = ["lab1 systemctl-stop", "lab2 systemctl-stop"]
UNDONE = ["lab2 undo", "lab1 undo"]
DIES = {f"{WORKER}:start": "dies"}
TABLE = {
    # another operator was faster: nothing was opened, so nothing is told as undone
    "never opened": (
        Scenario((*SERVE, *data("profile=throughput")), answers=Reply, faults={
            f"{name}:apply file+unit": BUSY for name in (HEAD, WORKER)}),
        failed("nothing was changed: no node has change", BUSY["error"],
               never=("ROLLED_BACK", "serves again", "as the change found it"))),
    # the other host's files go back, no engine was touched, and the line is node's own
    "apply refused": (
        Scenario(SERVE, healthy, answers=Reply, faults={
            f"{WORKER}:apply file+unit": REFUSED, f"{WORKER}:slow": "apply file+unit"}),
        failed("ROLLED_BACK; no engine ran before, none runs now", steps=[
            {"lab1 apply file+unit", "lab2 apply file+unit"}, "lab2 undo", "lab1 undo"])),
    # what the lost host did is unknown, so it is undone as well; the head never starts
    "line cut": (
        Scenario(SERVE, healthy, faults={f"{WORKER}:lost": "apply start"}),
        failed("apply: the connection failed: stand-in: the line was cut")),
    "worker dies": (Scenario(SERVE, healthy, faults=DIES), failed(
        f"{WORKER}: unit failed: exit-code, exit status 1",
        f"the last 2 log lines of {WORKER}:", "stand-in engine: ValueError: no such flag")),
    # the rig serves again by itself, and the run still fails
    "new profile dies": (
        Scenario((*SERVE, *data("profile=throughput")), faults={f"{HEAD}:start": "dies"},
                 answers=Reply),
        failed("ROLLED_BACK; tiny serves again: 6 characters")),
    # fault 55: an engine of a former setup answers on our port, whatever our own unit does
    "former answers": (
        Scenario(SERVE, healthy, answers=Reply, faults={f"{HEAD}:former": "active/running"}),
        failed(*FORMER, steps=[*STARTED, *STOPPED, *UNDONE])),
    "former answers, ours fails": (
        Scenario(SERVE, healthy, answers=Reply, faults={
            f"{HEAD}:former": "activating/auto-restart"}),
        failed(*FORMER, steps=[*STARTED, *STOPPED, *UNDONE])),
    # what comes back has to be ours as well
    "former answers after the way back": (
        Scenario((*SERVE, *data("profile=throughput")), answers=Reply, faults={
            f"{HEAD}:former": "active/running", f"{HEAD}:former-stays": True}),
        failed("could not go back whole", *FORMER)),
    # what came back stays
    "undo fails": (Scenario(SERVE, healthy, faults={**DIES, f"{HEAD}:undo": EDITED}), failed(
        f"could not go back whole: {HEAD}: undo: edited since; name it")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_a_refusal_is_told_once(ran: Runs) -> None:
    line = f"{WORKER}: apply: {REFUSED['error']}; {REFUSED['remedy']}"
    *before, last = ran["apply refused"].stderr.rstrip().splitlines()
    assert "\n".join(before).count(line) == 1 and last.startswith(f"--> error: {line}; change ")


def test_the_rig_goes_back_worker_first(ran: Runs) -> None:
    """An engine that was started is stopped before, head first."""
    assert "lab1 apply start" not in ran["line cut"].steps
    for name in ("line cut", "new profile dies"):
        assert ran[name].steps[-2:] == UNDONE
    assert ran["worker dies"].steps[-4:] == [*STOPPED, *UNDONE]


def test_the_undo_names_this_runs_change(ran: Runs) -> None:
    """Never the newest of the journal, which another operator may have opened."""
    for name in ("worker dies", "undo fails"):
        commands = ran[name].changing
        applied = next(c for c in commands if c.verb == "apply").request["change"]["id"]
        assert {c.request["change"] for c in commands if c.verb == "undo"} == {applied}
        told = f"deploys/rollback.py -y --data change={applied}" in ran[name].stderr
        assert told is (name == "undo fails")


def test_an_engine_of_a_former_setup_is_never_blessed(ran: Runs) -> None:
    """Fault 55: a good completion came, and the change is undone: it was another's."""
    for name in ("former answers", "former answers, ours fails"):
        assert "COMMITTED" not in ran[name].output, name
        assert "ROLLED_BACK; no engine ran before, none runs now" in ran[name].output
    assert "serves again" not in ran["former answers after the way back"].output
