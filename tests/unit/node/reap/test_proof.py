"""reap's proof: what was ended is gone and memory is back, or the evidence for a reboot."""

from __future__ import annotations

import pytest

from node.reap import proof
from tests.unit.node.support.reap_world import PORT, TITLE, World, pids, reap_request

CHANGED = """
import json, sys
from node.core import proc
from node.reap import reap, terminate
start = proc.stat
def reused(pid):  # a double: the pid belongs to another process once its pidfd is open
    proc.stat, seen = start, start(pid)
    return seen._replace(start_ticks=seen.start_ticks + 1) if seen else None
opened = terminate.pidfd_open
def open_then_reuse(pid):
    fd = opened(pid)
    proc.stat = reused
    return fd
sent = []
terminate.pidfd_open = open_then_reuse
terminate.send = lambda fd, number: sent.append(number)
answer = reap.reap(json.load(sys.stdin))
print(json.dumps({"sent": sent, "how": [row["how"] for row in answer["ended"]]}))
"""

UNKILLABLE = """
import json, sys
from node.reap import reap, terminate
# a double: the process waits in the kernel, no signal acts
terminate.send = lambda fd, number: None
print(json.dumps(reap.reap(json.load(sys.stdin))))
"""


def test_a_pid_that_was_given_to_another_process_is_not_signalled(world: World) -> None:
    pid = world.launch()
    answer = world.code(CHANGED, reap_request(settle_s=0))
    assert answer["sent"] == [] and set(answer["how"]) == {"changed"}
    assert world.lives(pid)


def test_one_that_no_signal_ends_needs_a_reboot(world: World) -> None:
    pid = world.launch("--port", str(PORT))
    world.unit("active")
    answer = world.code(UNKILLABLE, reap_request(hold=True, term_s=0, settle_s=1))
    assert (answer["verdict"], answer["ended"][0]["how"]) == ("needs_reboot", "alive")
    assert f"pid {pid} {TITLE} outlived SIGKILL: state S, waits in" in answer["evidence"]
    assert f"port {PORT} is held by" in answer["evidence"]
    # it could not start: it stays stopped, and nothing holds it
    assert answer["unit"]["restored"].endswith("ran before and is left stopped")
    assert world.unit() == "inactive"
    assert world.sh("find /run/systemd/system -type f") == ""
    world.call("undo")
    assert world.unit() == "active"


def test_vram_that_nobody_holds_needs_a_reboot(world: World) -> None:
    pid = world.launch()
    world.gpu(15616, pid)
    answer = world.reap(vram_free_mib=140000, settle_s=1)
    assert answer["verdict"] == "needs_reboot" and not world.lives(pid)
    assert "GPU 0 has 128155 of 143771 MiB free, 140000 wanted" in answer["evidence"]
    assert "the driver lists: no process" in answer["evidence"]
    world.gpu(616)
    answer = world.reap(vram_free_mib=140000, settle_s=1)
    assert answer["verdict"] == "nothing"


@pytest.mark.parametrize(("live_holds", "verdict"), [(True, "clean"), (False, "needs_reboot")])
def test_vram_beside_an_engine_that_lives(world: World, live_holds: bool, verdict: str) -> None:
    """What is missing may be its own; where it is not on the card, nobody holds it."""
    orphan, live = world.launch(), world.launch(stay=True)
    world.gpu(*((30616, orphan, live) if live_holds else (15616, orphan)))
    answer = world.reap(vram_free_mib=140000, settle_s=0)
    assert (answer["verdict"], pids(answer["ended"])) == (verdict, [orphan])
    assert (f"the driver lists: pid {live}" in answer["evidence"]) is live_holds
    assert pids(answer["spared"]) == [live] and world.lives(live)


@pytest.mark.parametrize(("unused", "enough"), [(40, True), (39, False)])
def test_segments_that_nobody_maps_count_as_memory(
    monkeypatch: pytest.MonkeyPatch, unused: int, enough: bool
) -> None:
    """`shm` frees them afterwards; a reboot for them would be in vain."""
    monkeypatch.setattr(proof, "_unused_segments", lambda: unused)
    seen = {"gpus": None, "gpus_unreadable": None, "available": 60}
    lacks = proof.memory_lacks(proof.Wanted(None, 100), seen)
    assert (lacks == []) is enough


def test_memory_that_does_not_come_back_needs_a_reboot(world: World) -> None:
    world.launch()
    answer = world.reap(memory_available_bytes=1 << 49, settle_s=0)
    assert answer["verdict"] == "needs_reboot" and "MemAvailable is" in answer["evidence"]
