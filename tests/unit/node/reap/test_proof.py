"""reap's proof: what was ended is gone and memory is back, or the evidence for a reboot."""

from __future__ import annotations

import subprocess

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

# A parent in vfork(2) sleeps uninterruptibly, but for SIGKILL, until its child ends.
SLEEPER = """
import ctypes, os, signal, sys, time
libc = ctypes.PyDLL(None)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
libc.prctl(15, b"VLLM::EngineCore_DP0", 0, 0, 0)
path = sys.argv[1]
open(path + ".new", "w").write(str(os.getpid()))
os.rename(path + ".new", path)
if libc.vfork() == 0:
    libc.prctl(1, 9, 0, 0, 0)
    time.sleep(600)
    os._exit(0)
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


def test_vram_that_the_gpu_does_not_report_cannot_be_waited_for(world: World) -> None:
    """A GB10 shares the host's memory: nvidia-smi says [N/A]. Unknown is not free."""
    pid = world.launch()
    world.gpu(0, pid)
    row = "0, GPU-1, NVIDIA GB10, 580.95.05, [N/A], [N/A], [N/A], 12.1, 000F:01:00.0\n"
    (world.bin / "gpus").write_text(row)
    refused = world.reap(vram_free_mib=1000)
    assert refused["code"] == "bad_request" and "does not report its memory" in refused["error"]
    assert "memory_available_bytes" in refused["error"] and world.lives(pid)
    answer = world.reap(memory_available_bytes=1)
    assert (answer["verdict"], pids(answer["ended"])) == ("clean", [pid])


def test_one_in_uninterruptible_sleep_is_judged_by_its_name_and_killed(world: World) -> None:
    """Its command line could not be read for as long as it sleeps; TERM waits as well."""
    program = world.root / "sleeper.py"
    program.write_text(SLEEPER)
    ready = world.root / "sleeper-ready"
    line = ["setsid", "-f", world.python, "-I", str(program), str(ready)]
    subprocess.run(world.enter(line), check=True)
    world.until(ready.exists)
    pid = int(ready.read_text())
    world.until(lambda: world.sh(f"sed 's/.*) //' /proc/{pid}/stat | cut -c1") == "D")
    world.until(lambda: world.parent(pid) == 1)
    answer = world.reap(term_s=1)
    # the other one is its child, which runs and can be read
    (row,) = [row for row in answer["ended"] if row["pid"] == pid]
    assert (row["argv0"], row["how"]) == ("VLLM::EngineCor", "KILL")
    assert answer["verdict"] == "clean" and not world.lives(pid)


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
