"""Four nodes behind a switch are one rig: one start, one stop, one restart. In this order."""

from __future__ import annotations

import re

from facts.endpoint import ask
from tests.system.engine.steps import head, wait_for_completion, wait_until
from tests.system.nodes.conftest import Four

WORKERS = ("test2", "test3", "test4")


def test_serve_brings_up_four_ranks_and_proves_it(serving: Four) -> None:
    answer = ask(head(serving.lab), 60)
    assert answer.ok and answer.text.strip(), answer.detail
    for rank, name in enumerate(serving.lab.hosts):
        script = serving.lab.ssh(name, "sudo cat /etc/rigbook/engine/serve.sh")
        assert f"--node-rank {rank}" in script and "--nnodes 4" in script
        assert ("--headless" in script) == (rank > 0)
        newest = serving.lab.changes(name)[0]
        assert (newest["deploy"], newest["status"]) == ("serve", "COMMITTED")
        assert serving.lab.ssh(name, "pgrep -fc '^VLLM::Worker'") == "1"


def test_a_second_run_changes_nothing(serving: Four) -> None:
    before = serving.lab.starts()
    done = serving.pyinfra("serve")
    assert done.rc == 0 and done.counts("Grand total")[1:3] == ("-", "-"), done.text
    assert serving.lab.starts() == before


def test_the_doctor_finds_nothing_on_any_of_them(serving: Four) -> None:
    done = serving.pyinfra("doctor")
    assert done.rc == 0, done.text
    for name in serving.lab.hosts:
        assert re.search(rf"\b{name}\b", done.text), done.text


def test_a_restart_takes_all_of_them_the_workers_first(serving: Four) -> None:
    before = serving.lab.starts()
    done = serving.pyinfra("restart")
    assert done.rc == 0 and "answers at" in done.text, done.text
    after = serving.lab.starts()
    assert all(after[name] != before[name] for name in before)
    begun = {
        name: int(serving.lab.unit(name, "InactiveExitTimestampMonotonic")[0]) for name in before
    }
    # the hosts are containers of one machine, and so of one clock
    assert max(begun[name] for name in WORKERS) < begun["test1"], begun


def test_a_rank_that_dies_brings_all_of_them_back_as_one(serving: Four) -> None:
    before = serving.lab.starts()
    serving.lab.ssh("test4", "sudo systemctl kill --signal=KILL rigbook-engine.service")
    wait_until(
        "every node has started its engine anew",
        900,
        lambda: all(now != before[name] for name, now in serving.lab.starts().items()),
        poll_s=5,
    )
    wait_for_completion(serving.lab, 900)
