"""A hand-made mess: the doctor names each cause, lowest layer first; one command mends it."""

from __future__ import annotations

import time

import pytest

from facts.endpoint import ask
from lab.incidents import DROP_IN, drift, ghost_drop_in, orphan, stale_segment
from tests.system.engine.steps import doctor, head, killed_operator, mended, named
from tests.system.rehearsal import Lab


def test_stop_leaves_nothing_and_a_second_stop_changes_nothing(serving: Lab) -> None:
    done = serving.pyinfra("stop")
    assert done.rc == 0, done.text
    for name in serving.hosts:
        assert serving.ssh(name, "sudo docker ps -q") == ""
        assert serving.ssh(name, "pgrep -c VLLM || true") == "0"
        ports = serving.ssh(name, "sudo ss -Hltn 'sport = :8000 or sport = :29501'")
        assert ports == ""
    again = serving.pyinfra("stop")
    assert again.rc == 0 and again.counts("Grand total")[1:3] == ("-", "-")
    verify = serving.pyinfra("verify")
    assert verify.rc == 1 and "Traceback" not in verify.text


def test_the_evening_of_may_30(serving: Lab) -> None:
    """C13, C12, C10 stacked: a ghost ExecStart, stale segments, an orphan on 29501."""
    assert serving.pyinfra("stop").rc == 0
    orphan(serving, "test1")
    stale_segment(serving, "test1")
    ghost_drop_in(serving, "test2")
    time.sleep(6)
    rows = doctor(serving)
    assert {
        ("engine-orphan", "test1"),
        ("port-taken", "test1"),
        ("shm-stale", "test1"),
        ("unit-ghost", "test2"),
        ("engine-down", "test1"),
        ("no-answer", "test1"),
    } <= named(rows)
    stops = [row["layer"] for row in rows if row["severity"] == "block"]
    assert list(dict.fromkeys(stops)) == ["processes", "unit", "endpoint"], "lowest layer first"
    refused = serving.pyinfra("serve")
    assert refused.rc == 1 and "nothing was changed" in refused.text


def test_restart_ends_the_orphan_and_serves(serving: Lab) -> None:
    """The seed's three one-liners, made safe; the ghost is removed by the remedy's hand."""
    serving.ssh("test2", f"sudo rm {DROP_IN} && sudo systemctl daemon-reload")
    dry = serving.pyinfra("restart", "--dry", yes=False)
    assert dry.rc == 0 and "end pid" in dry.text and "VLLM::Worker_TP1" in dry.text
    mended(serving.pyinfra("restart"))
    assert serving.ssh("test1", "ls /dev/shm/psm_0badcafe", check=False) == ""
    assert ask(head(serving)).ok
    assert doctor(serving) == []


def test_a_restart_cut_off_in_the_middle_is_finished_by_the_next(serving: Lab) -> None:
    change = killed_operator(serving, "restart")
    refused = serving.pyinfra("serve")
    assert refused.rc == 1 and "deploys/restart.py" in refused.text
    done = serving.pyinfra("restart")
    assert done.rc == 0, done.text
    for name in serving.hosts:
        newest = serving.changes(name)[0]
        assert (newest["id"], newest["status"]) == (change, "COMMITTED")


def test_a_foreign_process_on_the_rendezvous_port_is_named_and_left_alone(serving: Lab) -> None:
    assert serving.pyinfra("stop").rc == 0
    serving.ssh(
        "test1", "nohup python3 -m http.server 29501 >/dev/null 2>&1 & echo $! > /tmp/foreign.pid"
    )
    try:
        for deploy in ("serve", "restart"):
            done = serving.pyinfra(deploy)
            assert done.rc == 1, done.text
            assert "29501" in done.text and "python3" in done.text
        assert serving.ssh("test1", "kill -0 $(cat /tmp/foreign.pid) && echo alive") == "alive"
    finally:
        serving.ssh("test1", "kill $(cat /tmp/foreign.pid); rm /tmp/foreign.pid")
    # the restart that failed is not finished until one gets through
    mended(serving.pyinfra("restart"))


@pytest.fixture
def drifted(serving: Lab) -> Lab:
    """Both nodes launched by hand with other flags and the fork variable (C14)."""
    drift(serving, [*serving.hosts])
    time.sleep(20)
    return serving


def test_drift_is_shown_as_a_difference_and_mended_by_serve(drifted: Lab) -> None:
    rows = doctor(drifted)
    said = " ".join(str(row["summary"]) for row in rows)
    assert "256" in said and "512" in said, said
    assert ("forbidden-env", "test1") in named(rows) or "VLLM_WORKER_MULTIPROC_METHOD" in said
    dry = drifted.pyinfra("serve", "--dry", "--diff", yes=False)
    assert "-  --max-model-len 256" in dry.text and "+  --max-model-len 512" in dry.text
    mended(drifted.pyinfra("serve"))
    assert doctor(drifted) == []
