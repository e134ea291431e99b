"""What breaks while it serves: the operator's machine dies, a rank dies, and the rig is told so."""

from __future__ import annotations

import os
import shlex
import signal
import time

from facts.endpoint import ask
from lab.incidents import head_was_started
from node.rules.engine import DEAD_S
from schema import render_unit
from tests.system.engine.steps import (
    head,
    infra,
    killed_operator,
    start,
    wait_until,
)
from tests.system.rehearsal import Lab


def test_infra_is_green_while_it_serves(serving: Lab) -> None:
    done = serving.pyinfra("serve")
    assert done.rc == 0
    code, text = infra(serving)
    assert code == 0, text
    assert "passed" in text


def test_doctor_and_verify_say_that_it_serves(serving: Lab) -> None:
    doctor = serving.pyinfra("doctor")
    assert doctor.rc == 0, doctor.text
    assert "nothing blocks" in doctor.text
    verify = serving.pyinfra("verify")
    assert verify.rc == 0 and "answers at" in verify.text


def test_a_killed_operator_is_rolled_back_by_one_command(serving: Lab) -> None:
    change = killed_operator(serving, "serve", "--data", "profile=latency")
    refused = serving.pyinfra("stop")
    assert refused.rc == 1
    assert "change-open" in refused.text and "deploys/rollback.py" in refused.text
    plan = serving.pyinfra("rollback", "--dry", yes=False)
    assert plan.rc == 0 and change in plan.text
    assert serving.changes("test1")[0]["status"] == "OPEN", "a dry run undoes nothing"
    done = serving.pyinfra("rollback")
    assert done.rc == 0, done.text
    assert "serves again" in done.text
    for name in serving.hosts:
        newest = serving.changes(name)[0]
        assert (newest["id"], newest["status"]) == (change, "ROLLED_BACK")
    again = serving.pyinfra("serve")
    assert again.counts("Grand total")[1:3] == ("-", "-"), "back to what was there before"
    twice = serving.pyinfra("rollback")
    assert twice.rc == 0 and twice.counts("Grand total")[1:3] == ("-", "-")


def statuses(lab: Lab, change: str) -> set[str]:
    """The change's status on both hosts."""
    rows = [row for name in lab.hosts for row in lab.changes(name) if row["id"] == change]
    assert len(rows) == len(lab.hosts)
    return {str(row["status"]) for row in rows}


def test_the_same_serve_again_takes_up_what_a_killed_operator_left(serving: Lab) -> None:
    """One command, at once: nobody types rollback, and nobody waits for a silence to grow old."""
    change = killed_operator(serving, "serve", "--data", "profile=latency")
    done = serving.pyinfra("serve", "--data", "profile=latency")
    assert done.rc == 0, done.text
    assert f"takes up change {change}" in done.text and "undoes what is half done" in done.text
    assert "answers at" in done.text and statuses(serving, change) == {"COMMITTED"}
    back = serving.pyinfra("rollback", "--data", f"change={change}")
    assert back.rc == 0 and "serves again" in back.text, "to what served before the first run"
    again = serving.pyinfra("serve")
    assert again.counts("Grand total")[1:3] == ("-", "-"), again.text


def test_a_rollback_waits_for_the_lock_of_a_dead_runs_last_command(serving: Lab) -> None:
    """A stop takes up to 30 s, and holds the lock on its node to its end."""
    change = killed_operator(serving, "serve", "--data", "profile=latency")
    hold = (
        "import time; from node.core.files import Lock; Lock('a test').__enter__(); time.sleep(20)"
    )
    serving.ssh("test2", f"sudo setsid -f env PYTHONPATH={render_unit.PROGRAM_LINK} python3 -c "
                         f"{shlex.quote(hold)} </dev/null >/dev/null 2>&1")  # fmt: skip
    wait_until("the lock is held", 20, lambda: "held by pid" in serving.ssh(
        "test2", "sudo rignode status"))  # fmt: skip
    done = serving.pyinfra("rollback")
    assert done.rc == 0, done.text
    assert "waits: test2: claim: the lock is held by pid" in done.text
    assert "serves again" in done.text and statuses(serving, change) == {"ROLLED_BACK"}


def test_two_rollbacks_at_once_the_second_waits(serving: Lab) -> None:
    change = killed_operator(serving, "serve", "--data", "profile=latency")
    both = [start("rollback") for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    print(*said, sep="\n")
    assert [process.returncode for process in both] == [0, 0]
    assert any("serves again" in text for text in said), said
    waited = [text for text in said if "who rolls it back" in text]
    assert waited and "was faster" in waited[0], said
    assert statuses(serving, change) == {"ROLLED_BACK"} and ask(head(serving), 20).ok


def test_an_operator_who_slept_finds_the_change_in_other_hands(serving: Lab) -> None:
    """SIGSTOP is a laptop's lid: no end of its connection, and no sign of life."""
    known = {str(change["id"]) for change in serving.changes("test1")}
    sleeper = start("serve", "--data", "profile=latency")
    wait_until("it starts the head", 120, lambda: head_was_started(serving, "test1", known))
    os.kill(sleeper.pid, signal.SIGSTOP)
    change = str(serving.changes("test1")[0]["id"])
    early = serving.pyinfra("serve")
    assert early.rc == 1 and "may still be at work" in early.text, early.text
    time.sleep(DEAD_S + 10)
    done = serving.pyinfra("serve")
    assert done.rc == 0 and f"takes up change {change}" in done.text, done.text
    starts = serving.starts()
    os.kill(sleeper.pid, signal.SIGCONT)
    said = sleeper.communicate()[0]
    assert sleeper.returncode == 1 and "this run is over" in said, said
    assert "nothing is undone" in said
    assert statuses(serving, change) == {"COMMITTED"} and serving.starts() == starts
    assert ask(head(serving), 20).ok


def test_infra_is_red_and_names_the_worker_after_its_engine_was_killed(serving: Lab) -> None:
    """Red at once, and named; then serve brings both back, never one half of a pair."""
    before = serving.starts()
    serving.ssh("test2", "sudo docker kill --signal KILL rigbook-engine")
    code, text = infra(serving)
    assert code == 1
    failed = [line for line in text.splitlines() if line.startswith("FAILED")]
    assert failed and "test2" in failed[0], text
    done = serving.pyinfra("serve")
    assert done.rc == 0, done.text
    after = serving.starts()
    assert all(after[name] != before[name] for name in before), "never one half of a pair"
