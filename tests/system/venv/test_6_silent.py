"""A tower that is silent: the engine's core is stopped, and the watch restarts its unit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.venv.steps import Tower, wait_until

SILENT_S, INTERVAL_S = 60, 10
STATE = "/var/lib/rigbook/watch/state.json"


@pytest.fixture
def watched(serving: Tower) -> Iterator[Tower]:
    """The tower watches its own engine and restarts it."""
    serving.on(f"sudo rm -f {STATE}")
    options = (f"interval={INTERVAL_S}", f"silent_s={SILENT_S}", "restart=true")
    done = serving.deploy("watch", *(word for one in options for word in ("--data", one)))
    assert done.rc == 0, done.text
    try:
        yield serving
    finally:
        assert serving.deploy("watch", "--data", "remove=true").rc == 0


def silence(tower: Tower) -> dict[str, Any]:
    """What the watch knows of the engine's silence."""
    found: dict[str, Any] = json.loads(tower.on(f"sudo cat {STATE}"))["silence"]
    return found


def test_a_core_that_stops_is_named_bundled_and_restarted(watched: Tower) -> None:
    before = watched.values("InvocationID")
    pids = watched.on("pgrep -f '^VLLM::EngineCore'").split()
    assert pids
    watched.on(f"sudo kill -STOP {' '.join(pids)}")
    began = time.monotonic()
    wait_until("it is restarted", 240, lambda: len(silence(watched)["restarts"]) == 1)
    seconds = time.monotonic() - began
    assert seconds < SILENT_S + 2 * INTERVAL_S + 60
    bundle = watched.on("sudo ls /var/lib/rigbook/evidence").split()[-1]
    there = watched.on(f"sudo cat /var/lib/rigbook/evidence/{bundle}/processes.txt")
    assert "VLLM::EngineCore" in there and "T (stopped)" in there
    again = wait_until("a real completion", 600, watched.answers)
    print(f"REPLAY restarted after {seconds:.0f} s, answers {again:.0f} s later")
    assert watched.values("InvocationID") != before
    assert len(silence(watched)["restarts"]) == 1
