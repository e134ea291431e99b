"""Nobody at the keyboard: the rig comes back by itself, as a pair, within its budget."""

from __future__ import annotations

import threading
import time

import pytest

from tests.engine.steps import infra, wait_for_completion, wait_until
from tests.rehearsal import Lab

# The tiny recipe's start budget, a pair check (30 s), a restart's pause (15 s) and some air.
BUDGET_S = 420


def both(lab: Lab, verb: str) -> None:
    """The same verb of the lab on both hosts at the same moment."""
    jobs = [threading.Thread(target=lab.verb, args=(verb, name)) for name in lab.hosts]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


@pytest.fixture(autouse=True)
def whole_start_limit(serving: Lab) -> None:
    """Each test breaks the engine once; a rig in use is not broken five times in an hour."""
    for name in serving.hosts:
        serving.ssh(name, "sudo systemctl reset-failed rigbook-engine.service", check=False)


def boots(lab: Lab) -> list[str]:
    """Both hosts' boot ids."""
    return [lab.ssh(name, "cat /proc/sys/kernel/random/boot_id") for name in lab.hosts]


def test_both_hosts_reboot_at_once(serving: Lab) -> None:
    """C16, C13: both Sparks rebooted at 06:58 and nothing came back."""
    assert serving.pyinfra("serve").rc == 0
    before = boots(serving)
    both(serving, "reboot")
    assert not set(before) & set(boots(serving)), "both are in another boot"
    wait_for_completion(serving, BUDGET_S)
    code, text = infra(serving)
    assert code == 0, text


def test_the_workers_engine_is_killed(serving: Lab) -> None:
    """The head is healthy and cannot answer: the pair comes back as a pair (faults.md 42)."""
    before = serving.starts()
    serving.ssh("lab2", "sudo docker kill --signal KILL rigbook-engine")
    wait_for_completion(serving, BUDGET_S)
    after = serving.starts()
    assert all(after[name] != before[name] for name in before), "never one half of a pair"


def test_the_heads_engine_is_killed(serving: Lab) -> None:
    """A new head against the stale worker would hang without a word."""
    before = serving.starts()
    serving.ssh("lab1", "sudo docker kill --signal KILL rigbook-engine")
    wait_until("the head's death is seen", 60, lambda: serving.starts()["lab1"] != before["lab1"])
    wait_for_completion(serving, BUDGET_S)
    after = serving.starts()
    assert all(after[name] != before[name] for name in before), "never one half of a pair"


def test_dockerd_is_killed(serving: Lab) -> None:
    """systemd brings docker back, and docker's death must not end the engine for good."""
    serving.ssh("lab1", "sudo kill -9 $(cat /run/docker.pid)")
    wait_until(
        "docker is back",
        90,
        lambda: serving.ssh("lab1", "sudo docker info -f ok", check=False) == "ok",
    )
    wait_for_completion(serving, BUDGET_S)


def test_the_fabric_is_60_seconds_late_at_boot(serving: Lab) -> None:
    """The unit waits for its address; it does not fail at once and use up its starts."""
    assert serving.verb("fabric", "down").rc == 0
    both(serving, "reboot")
    time.sleep(60)
    for name in serving.hosts:
        assert serving.unit(name, "ActiveState", "NRestarts") == ["activating", "0"]
    assert serving.verb("fabric", "up").rc == 0
    wait_for_completion(serving, BUDGET_S)
