"""What breaks while it serves: the operator's machine dies, a rank dies, and the rig is told so."""

from __future__ import annotations

from tests.system.engine.steps import infra, killed_operator
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
    refused = serving.pyinfra("serve")
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
