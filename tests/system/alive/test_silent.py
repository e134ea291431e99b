"""Joined and silent: the real vLLM is stopped, cut off and overloaded; the watch of the head acts.

In this order: a full queue restarts nothing, each of three wedges one time, the fourth none.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from facts.endpoint import ask
from tests.system.engine.steps import doctor, head, mended, named, wait_for_completion, wait_until
from tests.system.rehearsal import Lab

SILENT_S, INTERVAL_S = 60, 10
# how long the queue is full; an hour with RIGBOOK_QUEUE_S=3600
QUEUE_S = float(os.environ.get("RIGBOOK_QUEUE_S", "120"))
CLIENTS = 24
# The tiny recipe's start budget, what the worker's check and pause take, and some air.
BUDGET_S = 420
STATE = "/var/lib/rigbook/watch/state.json"
BLACK_HOLE = "iptables {} INPUT -i bond0 -j DROP; iptables {} OUTPUT -o bond0 -j DROP"
# which process stops on which host
STOPPED = {
    "EngineCore": ("test1", "pgrep -f '^VLLM::EngineCore'"),
    "a worker": ("test2", "pgrep -f '^VLLM::Worker'"),
    "the API": ("test1", "sudo ss -Hltnp 'sport = :8000' | grep -oP 'pid=\\K[0-9]+' | head -1"),
}


@pytest.fixture(scope="module")
def watched(serving: Lab) -> Iterator[Lab]:
    """The head watches its engine and restarts it."""
    assert serving.pyinfra("serve").rc == 0
    serving.ssh("test1", f"sudo rm -f {STATE}")
    options = (f"interval={INTERVAL_S}", f"silent_s={SILENT_S}", "restart=true")
    done = serving.pyinfra("watch", *(word for one in options for word in ("--data", one)))
    assert done.rc == 0 and "a silent engine is restarted" in done.text, done.text
    try:
        yield serving
    finally:
        serving.pyinfra("watch", "--data", "remove=true")
        serving.pyinfra("restart")


def state(lab: Lab) -> dict[str, Any]:
    """What the watch knows."""
    found: dict[str, Any] = json.loads(lab.ssh("test1", f"sudo cat {STATE}"))
    return found


def restarts(lab: Lab) -> int:
    """How often the watch has restarted the engine."""
    return len(state(lab)["silence"]["restarts"])


def bundles(lab: Lab) -> list[str]:
    """The bundles of evidence on the head."""
    return lab.ssh("test1", "sudo ls /var/lib/rigbook/evidence 2>/dev/null || true").split()


def stop(lab: Lab, what: str) -> float:
    """Stops the process; when that was."""
    host, which = STOPPED[what]
    pids = lab.ssh(host, which).split()
    assert pids, what
    lab.ssh(host, f"sudo kill -STOP {' '.join(pids)}")
    return time.monotonic()


def test_a_full_queue_is_never_taken_for_dead(watched: Lab) -> None:
    url = f"{head(watched).base_url}/v1/completions"
    body = json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": 400, "ignore_eos": True})
    over, done = time.monotonic() + QUEUE_S, [0] * CLIENTS

    def client(number: int) -> None:
        while time.monotonic() < over:
            asked = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=600) as answer:
                answer.read()
            done[number] += 1

    before = watched.starts()
    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    waiting = 0
    while time.monotonic() < over:
        with urllib.request.urlopen(f"{head(watched).base_url}/metrics", timeout=30) as page:
            rows = page.read().decode().splitlines()
        waits = [row for row in rows if row.startswith("vllm:num_requests_waiting{")]
        waiting = max(waiting, int(float(waits[0].rpartition(" ")[2])))
        time.sleep(5)
    for thread in threads:
        thread.join(600)
    print(f"REPLAY {sum(done)} answers in {QUEUE_S:.0f} s, {waiting} waited at once, 0 restarts")
    assert waiting > 0, "the queue was never full"
    assert watched.starts() == before and restarts(watched) == 0 and bundles(watched) == []
    assert state(watched)["status"] == "up"


@pytest.mark.parametrize("what", STOPPED)
def test_a_process_that_stops_is_named_bundled_and_restarted_once(watched: Lab, what: str) -> None:
    wait_for_completion(watched, BUDGET_S)
    before, known, count = watched.starts(), bundles(watched), restarts(watched)
    began = stop(watched, what)
    wait_until("it is restarted", 240, lambda: restarts(watched) == count + 1, poll_s=3)
    seconds = time.monotonic() - began
    (bundle,) = set(bundles(watched)) - set(known)
    there = watched.ssh("test1", f"sudo ls -l /var/lib/rigbook/evidence/{bundle}")
    assert "summary.json" in there and "processes.txt" in there and "engine.log" in there
    print(f"REPLAY {what} stopped: named, bundled and restarted after {seconds:.0f} s")
    # named within 60 s of the threshold: a look under way, its metrics and the bundle are in it
    assert seconds < SILENT_S + 60
    again = wait_for_completion(watched, BUDGET_S)
    print(f"REPLAY {what} stopped: answers {again:.0f} s later")
    assert all(now != before[name] for name, now in watched.starts().items()), "half a pair"
    assert restarts(watched) == count + 1


def test_a_fourth_wedge_stands_down_until_an_answer(watched: Lab) -> None:
    wait_for_completion(watched, BUDGET_S)
    wait_until("it is seen to work", 90, lambda: state(watched)["silence"]["reason"] is None)
    before, count = watched.starts(), restarts(watched)
    assert count == 3
    stop(watched, "EngineCore")
    wait_until(
        "it stands down", 240, lambda: state(watched)["silence"]["stood_down_unix_s"], poll_s=3
    )
    time.sleep(3 * INTERVAL_S)
    assert watched.starts() == before and restarts(watched) == count
    assert {("wedged-silent", "test1"), ("stood-down", "test1")} <= named(doctor(watched))
    mended(watched.pyinfra("restart"))
    wait_until(
        "the stand-down is over", 90,
        lambda: state(watched)["silence"]["stood_down_unix_s"] is None,
    )  # fmt: skip
    assert ask(head(watched)).ok


def test_a_black_hole_in_the_fabric_is_waited_for(watched: Lab) -> None:
    """The sockets stay up and nothing passes: a restart would only hang at the rendezvous."""
    watched.ssh("test1", f'sudo sed -i \'s/"restarts": \\[[^]]*\\]/"restarts": []/\' {STATE}')
    before, known = watched.starts(), set(bundles(watched))
    watched.ssh("test2", f"sudo sh -c '{BLACK_HOLE.format('-I', '-I')}'")
    began = time.monotonic()
    try:
        wait_until("it is named", 240, lambda: state(watched)["silence"]["reason"], poll_s=3)
        print(f"REPLAY the fabric passes nothing: named after {time.monotonic() - began:.0f} s")
        said = watched.ssh("test1", "sudo journalctl -u rigbook-watch.service -n 50 -o cat")
        assert "is silent" in said and "on the fabric" in said
        assert watched.starts() == before and restarts(watched) == 0
        assert set(bundles(watched)) - known, "its evidence is kept"
    finally:
        watched.ssh("test2", f"sudo sh -c '{BLACK_HOLE.format('-D', '-D')}'")
    wait_for_completion(watched, BUDGET_S)
    assert restarts(watched) <= 1
