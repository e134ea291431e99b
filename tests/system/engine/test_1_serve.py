"""The main job with the real vLLM over two nodes; the tests run in this order, on one lab."""

from __future__ import annotations

import re

import pytest

from facts.endpoint import ask
from tests.system.engine.steps import head
from tests.system.rehearsal import Lab

BROKEN = ("--data", "recipe=broken", "--data", "recipes_dir=tests/system/lab/recipes")
OTHER = ("--data", "profile=throughput")


@pytest.fixture(scope="module")
def serving(lab: Lab) -> Lab:
    """The lab after its first `serve`, in another profile: the way to the default is tested here,
    and the files behind this one go on from it."""
    done = lab.pyinfra("serve", *OTHER)
    assert done.rc == 0, done.text
    return lab


def test_serve_brings_up_both_nodes_and_proves_it(serving: Lab) -> None:
    answer = ask(head(serving))
    assert answer.ok, answer.detail
    assert answer.text.strip()
    for name in serving.hosts:
        newest = serving.changes(name)[0]
        assert (newest["deploy"], newest["status"]) == ("serve", "COMMITTED")
        assert "answers" in str(newest["reason"])
        assert serving.unit(name, "ActiveState", "UnitFileState") == ["active", "enabled"]


def test_the_worker_is_headless_and_both_are_one_engine(serving: Lab) -> None:
    lines = {
        name: serving.ssh(name, "sudo cat /etc/rigbook/engine/serve.sh") for name in serving.hosts
    }
    assert "--headless" in lines["test2"] and "--headless" not in lines["test1"]
    metrics = serving.ssh("test1", "curl -s http://10.89.0.11:8000/metrics | grep -c ^vllm:")
    assert int(metrics) > 50


def test_a_second_run_changes_nothing_and_restarts_nothing(serving: Lab) -> None:
    before = serving.starts()
    done = serving.pyinfra("serve", *OTHER)
    assert done.rc == 0
    assert done.counts("Grand total")[1:3] == ("-", "-"), "a second run may change nothing"
    assert serving.starts() == before


def test_a_dry_run_shows_the_changed_flags_and_changes_nothing(serving: Lab) -> None:
    before, starts = serving.snapshots(), serving.starts()
    done = serving.pyinfra("serve", "--dry", "--diff", yes=False)
    assert done.rc == 0
    assert "-  --max-num-seqs 8" in done.text and "+  --max-num-seqs 4" in done.text
    order = [done.text.index(step) for step in ("[test1] stop ", "[test1] start ")]
    assert order == sorted(order)
    assert serving.snapshots() == before
    assert serving.starts() == starts


def test_a_changed_profile_restarts_both_and_is_proven(serving: Lab) -> None:
    before = serving.starts()
    done = serving.pyinfra("serve")
    assert done.rc == 0, done.text
    took = re.search(r"parser takes the command line of test1 \((.*?) s\)", done.text)
    assert took, done.text
    print(f"REPLAY vLLM's own parser took {took[1]} s")
    after = serving.starts()
    assert all(after[name] != before[name] for name in before), "both nodes restart, as a pair"
    assert ask(head(serving)).ok
    again = serving.pyinfra("serve")
    assert again.counts("Grand total")[1:3] == ("-", "-")


def test_a_flag_that_vllm_does_not_know_stops_nothing(serving: Lab) -> None:
    """Its own parser is asked before; what it says ends the run."""
    starts, before = serving.starts(), serving.changes("test1")
    for more in (("--dry",), ()):
        done = serving.pyinfra("serve", *BROKEN, *more, yes=not more)
        assert done.rc == 1
        assert "block arguments-refused [test1]" in done.text
        assert "unrecognized arguments: --rigbook-no-such-flag" in done.text
        assert "nothing was changed: 1 finding(s) block" in done.text
    assert serving.starts() == starts and serving.changes("test1") == before
    assert ask(head(serving)).ok
    assert not serving.ssh("test1", "sudo docker ps -aq --filter name=rigbook-preflight")
    print(f"REPLAY a refused flag costs {done.seconds:.1f} s and no outage")


def test_an_engine_that_cannot_start_gives_way_to_the_last_good_one(serving: Lab) -> None:
    done = serving.pyinfra(
        "serve", *BROKEN, "--data", "waive=arguments-refused", "--data", "reason=a test"
    )
    assert done.rc == 1
    assert "unrecognized arguments" in done.text, "the engine's own last lines name the cause"
    assert "ROLLED_BACK" in done.text and "serves again" in done.text
    answer = ask(head(serving))
    assert answer.ok, answer.detail
    for name in serving.hosts:
        newest = serving.changes(name)[0]
        assert (newest["deploy"], newest["status"]) == ("serve", "ROLLED_BACK")
        script = serving.ssh(name, "sudo cat /etc/rigbook/engine/serve.sh")
        assert "--max-num-seqs 4" in script and "rigbook-no-such-flag" not in script


def test_the_failed_change_leaves_nothing_to_do(serving: Lab) -> None:
    done = serving.pyinfra("serve")
    assert done.rc == 0
    assert done.counts("Grand total")[1:3] == ("-", "-")
