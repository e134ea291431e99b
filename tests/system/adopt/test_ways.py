"""Three ways of serving are taken over by ours with real engines, and given back; one goes back.

What a person started by hand is not started again: the command is told.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.system.adopt.conftest import Served
from tests.system.adopt.setups import (
    BOX,
    COMPOSE,
    CRON_LINE,
    OURS,
    SCRIPTED,
    SEED,
    TAKE,
    UNIT,
    Setup,
    answers,
    give_back,
    newest,
    run_script,
    runs,
    take,
)
from tests.system.engine.steps import start, wait_until

# what is told of each before it is taken
TOLD = {
    "seed": (f"disable {UNIT}", f"restart policy of container {BOX}: no", "comment out line",
             f"stop {UNIT}", f"end the engine that runs in container {BOX}"),
    "compose": ("restart policy of container llm-vllm-1: no", "stop container llm-vllm-1"),
    "script": (f"end the engine that runs in container {BOX}",),
}  # fmt: skip


@pytest.mark.parametrize("setup", [SEED, COMPOSE, SCRIPTED], ids=lambda setup: setup.name)
def test_a_rig_that_serves_is_taken_over_and_given_back(served_by: Served, setup: Setup) -> None:
    with served_by(setup) as lab:
        before = {host: runs(lab, host) for host in lab.hosts}
        refused = lab.pyinfra("serve")
        assert refused.rc == 1 and "nothing was changed" in refused.text, refused.text

        done, took = take(lab)
        assert done.rc == 0 and "COMMITTED" in done.text, done.text
        for line in TOLD[setup.name]:
            assert line in done.text, line
        for host in lab.hosts:
            now = runs(lab, host)
            assert f"{OURS} enabled active" in now["units"], now
            assert f"{UNIT} enabled" not in now["units"] and f"{UNIT} active" not in now["units"]
            assert not now["crontab"].startswith("@reboot") and "unless-st" not in now["boxes"]
            assert newest(lab, host)["status"] == "COMMITTED"
        verify = lab.pyinfra("verify")
        assert verify.rc == 0, verify.text
        again = lab.pyinfra("adopt", *TAKE)
        assert again.rc == 0 and "nothing to take over" in again.text, again.text

        back, gave = give_back(lab)
        assert back.rc == 0, back.text
        if setup is SCRIPTED:
            assert "was started by hand; to start it again: " in back.text, back.text
            assert ": docker exec --detach --user=" in back.text, back.text
            for host in ("test2", "test1"):
                run_script(lab, host)
            answers(lab)
        else:
            assert "serves again" in back.text, back.text
        assert {host: runs(lab, host) for host in lab.hosts} == before
        for host in lab.hosts:
            assert newest(lab, host)["status"] == "ROLLED_BACK"
        print(f"TABLE | {setup.name} | take {took.seconds:.0f} s | back {gave.seconds:.0f} s |")


def test_one_that_ours_cannot_follow_goes_back_and_serves(served_by: Served) -> None:
    with served_by(SEED) as lab:
        before = {host: runs(lab, host) for host in lab.hosts}
        done, gap = take(lab, "--data", "recipes_dir=tests/system/lab/recipes",
                         "--data", "recipe=broken", "--data", "waive=arguments-refused",
                         "--data", "reason=a test")  # fmt: skip
        assert done.rc == 1 and "COMMITTED" not in done.text, done.text
        assert "ROLLED_BACK" in done.text and "serves again" in done.text, done.text
        assert {host: runs(lab, host) for host in lab.hosts} == before
        assert CRON_LINE in before["test1"]["crontab"]
        print(f"TABLE | seed, ours breaks | goes back by itself | {gap.seconds:.0f} s |")


def test_an_operator_who_is_killed_in_it_is_taken_up(served_by: Served) -> None:
    with served_by(SEED) as lab:
        process = start("adopt", *TAKE)

        def ended() -> bool:
            change = newest(lab)
            steps = change["steps"] if change["status"] == "OPEN" else ()
            return any(s["op"] == "former_engine" and s["state"] == "done" for s in steps)

        wait_until("the former engine is ended", 120, ended)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        killed = newest(lab)["id"]
        done, gap = take(lab)
        assert done.rc == 0 and f"takes up change {killed}" in done.text, done.text
        assert newest(lab)["id"] == killed and newest(lab)["status"] == "COMMITTED"
        back, _ = give_back(lab)
        assert back.rc == 0 and "serves again" in back.text, back.text
        print(f"TABLE | seed, operator killed | taken up {gap.seconds:.0f} s | |")
