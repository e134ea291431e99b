"""Incidents on the real vLLM: a crash loop, two ranks that both lead, an engine that cannot answer.

And what a real engine shows to the reaper, which its stand-in has to show as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.incidents import lose_quotes, relaunch
from tests.system.engine.steps import doctor, mended, named, wait_until
from tests.system.engine.traits import STAND_IN_TRAITS, launch_stand_in, traits
from tests.system.rehearsal import Lab


@pytest.fixture
def by_hand(serving: Lab) -> Iterator[Lab]:
    """A rig that serves, with a whole start limit; what the test did by hand, serve mends."""
    assert serving.pyinfra("serve").rc == 0
    for name in serving.hosts:
        serving.ssh(name, "sudo systemctl reset-failed rigbook-engine.service", check=False)
    yield serving


def test_a_crash_loop_ends_after_three_starts_and_is_named_with_its_cause(by_hand: Lab) -> None:
    """B1, B2: four starts had filled both GPUs; C16: thirty-five until sshd died."""
    lab = by_hand
    lab.ssh("test1", "sudo systemctl stop rigbook-engine.service")
    relaunch(lab, "test1", "s/--max-num-seqs/--no-such-flag/")

    def given_up() -> bool:
        return lab.unit("test1", "ActiveState") == ["failed"]

    wait_until("systemd gives up", 240, given_up)
    starts = lab.ssh("test1", "sudo journalctl -b -u rigbook-engine.service -o cat --since -5min "
                     "| grep -c 'unrecognized arguments'")  # fmt: skip
    assert int(starts) == 3
    rows = doctor(lab)
    loop = next(row for row in rows if row["code"] == "crash-loop")
    assert loop["node"] == "test1" and "a flag that this vLLM does not know" in str(loop)
    assert lab.ssh("test1", "sudo docker ps -aq; ls /dev/shm/psm_* 2>/dev/null", check=False) == ""


def test_a_worker_without_headless_is_named(serving: Lab) -> None:
    """C5: it leads as well, and the head waits for a worker that never comes.

    It breaks what the crash loop left, and one `serve` mends both.
    """
    lab = serving
    lab.ssh("test2", "sudo systemctl reset-failed rigbook-engine.service", check=False)
    for name in lab.hosts:
        lab.ssh(name, "sudo systemctl stop rigbook-pair.timer")
    relaunch(lab, "test2", "/--headless/d")

    def leads() -> bool:
        said = lab.ssh("test2", "sudo docker top rigbook-engine -eo pid,args", check=False)
        return "vllm" in said and "--headless" not in said

    wait_until("the worker runs as a head", 120, leads)
    assert ("worker-not-headless", "test2") in named(doctor(lab))
    mended(lab.pyinfra("serve"))
    assert doctor(lab) == []


def test_json_that_lost_its_quotes_is_named_while_the_engine_lives(by_hand: Lab) -> None:
    """C7: this vLLM refuses what the seed's took in silence; the live argv tells it in both."""
    lab = by_hand
    lose_quotes(lab, "test1")

    def runs() -> bool:
        said = lab.ssh("test1", "sudo docker top rigbook-engine -eo pid,args", check=False)
        return "{temperature:0}" in said

    wait_until("the engine runs with it", 90, runs, poll_s=0.3)
    rows = doctor(lab)
    assert ("json-quotes-lost", "test1") in named(rows), rows
    mended(lab.pyinfra("serve"))


def test_an_engine_that_is_healthy_and_cannot_answer_never_serves(by_hand: Lab) -> None:
    """lab-notes: without a compiler /health turns 200, and the first chat kills the engine."""
    lab = by_hand
    done = lab.pyinfra(
        "serve", "--data", "recipe=mute", "--data", "recipes_dir=tests/system/lab/recipes"
    )
    assert done.rc == 1, done.text
    assert "InvalidCxxCompiler" in done.text, "the engine's own last lines name the cause"
    assert "ROLLED_BACK" in done.text and "serves again" in done.text


def test_a_stand_in_shows_what_a_real_engine_shows(by_hand: Lab) -> None:
    """The contract: reap looks at titles, the rendezvous port and segments; both have them."""
    lab = by_hand
    real = traits(lab, "test1")
    assert real >= STAND_IN_TRAITS, real
    lab.pyinfra("stop")
    pid = launch_stand_in(lab, "test1")
    try:
        assert traits(lab, "test1") >= STAND_IN_TRAITS
    finally:
        lab.ssh("test1", f"sudo kill {pid}")
