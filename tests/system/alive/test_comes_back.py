"""Nobody at the keyboard: the rig comes back by itself, as a pair, within its budget."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.system.engine.steps import doctor, infra, named, wait_for_completion, wait_until
from tests.system.rehearsal import Lab

# The tiny recipe's start budget, a pair check (30 s), a restart's pause (15 s) and some air.
BUDGET_S = 420
# A host of the lab boots in seconds; its shutdown waits up to 30 s for the engine's container.
BOOT_S = 180


@pytest.fixture(autouse=True)
def whole_start_limit(serving: Lab) -> None:
    """Each test breaks the engine once; a rig in use is not broken five times in an hour."""
    for name in serving.hosts:
        serving.ssh(name, "sudo systemctl reset-failed rigbook-engine.service", check=False)


def boot_id(lab: Lab, name: str) -> str:
    """Which boot a host is in; empty while it cannot be reached."""
    return lab.ssh(name, "cat /proc/sys/kernel/random/boot_id", check=False)


def both_reboot(lab: Lab) -> float:
    """Both hosts reboot at the same moment; the monotonic time of that moment."""
    before = {name: boot_id(lab, name) for name in lab.hosts}
    began = time.monotonic()
    for name in lab.hosts:
        lab.ssh(name, "sudo systemctl --no-block reboot", check=False)

    def another_boot() -> bool:
        return all(boot_id(lab, name) not in ("", before[name]) for name in lab.hosts)

    wait_until("both hosts are in another boot", BOOT_S, another_boot)
    return began


def test_both_hosts_reboot_at_once_and_the_fabric_is_60_seconds_late(serving: Lab) -> None:
    """C16, C13: both Sparks rebooted at 06:58 and nothing came back.

    The unit waits for its address; it does not fail at once and use up its starts.
    """
    assert serving.pyinfra("serve").rc == 0
    assert serving.verb("fabric", "down").rc == 0
    try:
        began = both_reboot(serving)
        time.sleep(max(0.0, began + 75 - time.monotonic()))
        for name in serving.hosts:
            assert serving.unit(name, "ActiveState", "NRestarts") == ["activating", "0"]
    finally:
        assert serving.verb("fabric", "up").rc == 0
    seconds = wait_for_completion(serving, BUDGET_S)
    print(f"REPLAY both hosts rebooted: a completion {seconds:.0f} s behind the fabric")
    code, text = infra(serving)
    assert code == 0, text


@pytest.fixture
def nobody_mends(serving: Lab) -> Iterator[Lab]:
    """The pair's own watch is off, so that the doctor finds the pair as it broke."""
    for name in serving.hosts:
        serving.ssh(name, "sudo systemctl stop rigbook-pair.timer")
    try:
        yield serving
    finally:
        for name in serving.hosts:
            serving.ssh(name, "sudo systemctl start rigbook-pair.timer")


def test_a_lost_worker_is_named_while_the_head_says_that_it_is_healthy(nobody_mends: Lab) -> None:
    """faults.md 42: /health stays 200, and no completion can come."""
    lab = nobody_mends
    before = lab.starts()
    # systemd must not bring the worker back either while the doctor looks
    lab.ssh("test2", "sudo docker kill --signal KILL rigbook-engine")
    wait_until("the worker is gone", 30, lambda: lab.ssh("test2", "sudo docker ps -q") == "")
    assert lab.ssh("test1", "curl -s -o /dev/null -w '%{http_code}' localhost:8000/health") == "200"
    rows = doctor(lab)
    assert {("engine-down", "test2"), ("wedged-pair", "test1")} & named(rows), rows
    for name in lab.hosts:
        lab.ssh(name, "sudo systemctl start rigbook-pair.timer")
    wait_for_completion(lab, BUDGET_S)
    after = lab.starts()
    assert all(after[name] != before[name] for name in before), "never one half of a pair"


def test_the_heads_engine_is_killed(serving: Lab) -> None:
    """A new head against the stale worker would hang without a word."""
    before = serving.starts()
    serving.ssh("test1", "sudo docker kill --signal KILL rigbook-engine")
    wait_until("the head's death is seen", 60, lambda: serving.starts()["test1"] != before["test1"])
    wait_for_completion(serving, BUDGET_S)
    after = serving.starts()
    assert all(after[name] != before[name] for name in before), "never one half of a pair"


@pytest.mark.parametrize("moment", ["it starts", "it answers"])
def test_dockerd_is_killed(serving: Lab, moment: str) -> None:
    """systemd brings docker back within 20 s, and the engine with it.

    From 250 on it counts a start that waits for the unit's end more than once (systemd#21025): an
    end that waited for docker would use up the start limit.
    """
    serving.ssh("test1", "sudo systemctl restart rigbook-engine.service --no-block")
    wait_until("the engine starts", 60, lambda: in_container(serving))
    if moment == "it answers":
        wait_for_completion(serving, BUDGET_S)
    killed = "sudo kill -9 $(cat /run/docker.pid); sleep 1; timeout 20 sudo docker info -f ok"
    assert serving.ssh("test1", killed).splitlines()[-1] == "ok"
    wait_for_completion(serving, BUDGET_S)
    wait_until("its start is over", 60, lambda: serving.unit("test1", "ActiveState") == ["active"])


def in_container(lab: Lab) -> bool:
    """Gives True once the head's container runs in this start of its unit."""
    unit = lab.unit("test1", "SubState")[0]
    return unit in ("start-post", "running") and lab.ssh("test1", "sudo docker ps -q") != ""
