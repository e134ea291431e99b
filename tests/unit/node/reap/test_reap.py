"""reap: orphans are ended and proven gone; whatever has an owner, or is not proven, is spared."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from node import orphans
from node.core.errors import CannotRead
from node.core.proc import Stat
from node.orphans import Candidate, Owners, ProcessView, is_server, judge_all
from node.rules import engine
from schema.snapshot import ShmSegment
from tests.unit.node.cli.test_cli import FOUND
from tests.unit.node.support import strace
from tests.unit.node.support.host import change
from tests.unit.node.support.reap_world import PORT, STAND_IN, TITLE, World, pids, reap_request
from tests.unit.node.support.reap_world import UNIT as reap_world_UNIT

# Who answers for an engine process, for each kind of supervisor; what is unknown is spared.

UNIT = "rigbook-engine.service"
CID = "c" * 64
DOCKER = f"/system.slice/docker-{CID}.scope"
RUNNING = {"Id": CID, "Name": "/rigbook-engine", "State": {"Running": True, "Status": "running"}}
OTHER = {**RUNNING, "Name": "/their-engine"}
PAUSED = {**RUNNING, "State": {"Paused": True, "Status": "paused"}}
RESTARTING = {**RUNNING, "State": {"Restarting": True, "Status": "restarting"}}
EXITED = {**RUNNING, "State": {"Running": False, "Status": "exited"}}
INIT = Stat(pid=1, comm="systemd", state="S", ppid=0, session=1, start_ticks=1, rss=1)


def stat(pid: int, ppid: int = 1, session: int = 50, comm: str = "x") -> Stat:
    """A process's stat."""
    return Stat(pid, comm, "S", ppid, session, 100 + pid, 1)


def judge(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, *, units: dict[str, str] | None = None,
    container: Any = None, inside: bool = False, server: bool = False,
    above: tuple[Stat, ...] = (), ppid: int = 1, uid: int = 0,
    listening: dict[int, list[int]] | None = None, wanted: tuple[int, ...] = (),
) -> tuple[bool, bool, str]:  # fmt: skip
    """The judgement of an engine process with pid 100: orphan, ours and live, why."""
    one = Candidate(stat(100, ppid), "boot", uid, "VLLM::Worker", "/usr/bin/python3", cgroup,
                    "pid:[2]" if inside else "pid:[1]", ("title",), True, server)  # fmt: skip

    class Fixed(Owners):
        """Supervisors with the answers of the test."""

        def unit_state(self, name: str) -> str:
            return (units or {}).get(name, "unknown")

        def container(self, identifier: str) -> Any:
            if isinstance(container, Exception):
                raise container
            return container

    owners = Fixed(UNIT, "rigbook-engine")
    owners.own_namespace, owners.own_container = "pid:[1]", None
    monkeypatch.setattr(orphans, "_is_helper", lambda pid: False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    stats = {row.pid: row for row in (INIT, *above, one.stat)}
    ports = listening or {}
    holders = {port: ports[port] for port in wanted if port in ports}
    (found,) = judge_all(ProcessView(stats, {100: one}, holders, [], ports), owners)
    return found.is_orphan, found.is_own, found.why


@pytest.mark.parametrize(("container", "units", "wanted", "words"), [
    (RUNNING, {UNIT: "active"}, (False, True), "the container rigbook-engine of"),
    (RUNNING, {UNIT: "activating"}, (False, True), "answers for it"),
    (RUNNING, {}, (False, True), "(unknown) answers for it"),
    (RUNNING, {UNIT: "failed"}, (True, False), f"runs, but {UNIT} is failed"),
    (OTHER, {UNIT: "inactive"}, (False, False), "the container their-engine runs"),
    (PAUSED, {UNIT: "active"}, (False, True), "answers for it"),
    (RESTARTING, {UNIT: "active"}, (False, True), "answers for it"),
    (EXITED, {UNIT: "active"}, (True, False), "its container rigbook-engine is exited"),
    (CannotRead("no answer in 8 s"), {}, (False, False), "is not known: no answer in 8 s"),
    (None, {}, (False, False), "is another runtime's"),
])  # fmt: skip
def test_containers(
    monkeypatch: pytest.MonkeyPatch, container: Any, units: dict[str, str],
    wanted: tuple[bool, bool], words: str,
) -> None:  # fmt: skip
    found = judge(monkeypatch, DOCKER, container=container, units=units, inside=True)
    assert found[:2] == wanted and words in found[2]


def test_a_container_that_shares_the_hosts_pids_and_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert judge(monkeypatch, DOCKER)[0] is True
    pod = f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{CID}.scope"
    assert judge(monkeypatch, pod)[0] is False


@pytest.mark.parametrize(("cgroup", "units", "wanted", "words"), [
    (f"/system.slice/{UNIT}", {UNIT: "active"}, (False, True), "(active) answers for it"),
    (f"/system.slice/{UNIT}", {UNIT: "deactivating"}, (False, True), "answers for it"),
    (f"/system.slice/{UNIT}", {UNIT: "inactive"}, (True, False), "which is inactive"),
    (f"/system.slice/{UNIT}", {}, (False, True), "(unknown) answers for it"),
    ("/system.slice/other.service", {"other.service": "active"}, (False, False), "other.service"),
    ("/system.slice/other.service/sub", {"other.service": "failed"}, (True, False), "is failed"),
    ("/user.slice/user-1.slice/user@1.service/app.slice/vllm.service",
     {"vllm.service": "inactive"}, (False, False), "user@1.service answers"),
    ("/machine.slice/machine-a.scope/payload", {}, (False, False), "another container runtime"),
    ("/system.slice/ssh.service", {"ssh.service": "active"}, (True, False), "its parent is gone"),
    ("/user.slice/user-0.slice/session-4.scope", {}, (True, False), "its parent is gone"),
])  # fmt: skip
def test_units_and_sessions(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, units: dict[str, str],
    wanted: tuple[bool, bool], words: str,
) -> None:  # fmt: skip
    found = judge(monkeypatch, cgroup, units=units)
    assert found[:2] == wanted and words in found[2]


@pytest.mark.parametrize(("above", "ppid", "server", "orphan", "words"), [
    ((), 1, False, True, "left to pid 1 (systemd)"),
    ((stat(50, comm="bash"),), 50, False, False, "its parent pid 50 (bash) lives"),
    # adopted by a subreaper: the session is neither its own nor the adopter's
    ((stat(60, session=60, comm="agent"),), 60, False, True, "left to pid 60 (agent)"),
    ((stat(50, comm="bash"),), 1, True, False, "the shell that started it lives: pid 50"),
    ((stat(50, comm="bash"),), 1, False, True, "left to pid 1"),
    ((), 1, True, True, "left to pid 1"),
    ((), 0, False, False, "from outside this pid namespace"),
    ((), 77, False, False, "went while we looked"),
])  # fmt: skip
def test_parents(
    monkeypatch: pytest.MonkeyPatch, above: tuple[Stat, ...], ppid: int, server: bool,
    orphan: bool, words: str,
) -> None:  # fmt: skip
    found = judge(monkeypatch, "/", above=above, ppid=ppid, server=server)
    assert found[0] is orphan and words in found[2]


@pytest.mark.parametrize(("server", "listening", "wanted", "orphan", "words"), [
    (True, {8011: [100]}, (), False, "it serves on port 8011"),
    (True, {8011: [100]}, (8000, 29501), False, "it serves on port 8011"),
    (True, {8011: [100]}, (8011,), True, "its parent is gone"),
    # of several API servers the children listen; one of them holds a port of ours
    (True, {8011: [101], 29501: [102]}, (8000,), False, "it serves on port 8011"),
    (True, {8011: [101], 29501: [102]}, (29501,), True, "its parent is gone"),
    (True, {8011: [7]}, (), True, "its parent is gone"),
    # an engine's process that lost its server listens for nobody
    (False, {29501: [100]}, (), True, "its parent is gone"),
])  # fmt: skip
def test_a_server_by_hand(
    monkeypatch: pytest.MonkeyPatch, server: bool, listening: dict[int, list[int]],
    wanted: tuple[int, ...], orphan: bool, words: str,
) -> None:  # fmt: skip
    children = (stat(101, ppid=100), stat(102, ppid=101), stat(7))
    found = judge(monkeypatch, "/", server=server, above=children, listening=listening,
                  wanted=wanted)  # fmt: skip
    assert found[0] is orphan and words in found[2]


def test_another_users_process_is_spared_ownership(monkeypatch: pytest.MonkeyPatch) -> None:
    """A oneshot unit with KillMode=process leaves it to its user; our own engine's user is ours."""
    assert "another user" in judge(monkeypatch, "/", uid=4321)[2]
    theirs = judge(monkeypatch, "/system.slice/alice.service",
                   units={"alice.service": "inactive"}, uid=4321)  # fmt: skip
    assert theirs[0] is False and "another user's (uid 4321)" in theirs[2]
    ours = judge(monkeypatch, f"/system.slice/{UNIT}", units={UNIT: "inactive"}, uid=4321)
    assert ours[0] is True
    monkeypatch.setattr(orphans, "_allowed_uids", lambda: {0, 4321})
    assert judge(monkeypatch, "/", uid=4321)[0] is True


@pytest.mark.parametrize(("argv", "wanted"), [
    (("python3", "/opt/vllm/bin/vllm", "serve", "/m"), True),
    (("/opt/vllm/bin/vllm", "serve"), True),
    (("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"), True),
    (("python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"), True),
    (("python3", "/opt/vllm/bin/vllm", "bench", "serve"), False), (("vllm", "chat"), False),
    (("bash", "-c", "vllm serve /m"), False), (("docker", "run", "image", "vllm", "serve"), False),
    (("vim", "/opt/vllm/bin/vllm"), False), (("VLLM::EngineCore",), False),
])  # fmt: skip
def test_what_serves_a_model(argv: tuple[str, ...], wanted: bool) -> None:
    assert is_server(argv) is wanted


# reap's proof: what was ended is gone and memory is back, or the evidence for a reboot.

CHANGED = """
import json, sys
from node.core import proc
from node import reap
start = proc.stat
def reused(pid):  # a double: the pid belongs to another process once its pidfd is open
    proc.stat, seen = start, start(pid)
    return seen._replace(start_ticks=seen.start_ticks + 1) if seen else None
opened = reap.pidfd_open
def open_then_reuse(pid):
    fd = opened(pid)
    proc.stat = reused
    return fd
sent = []
reap.pidfd_open = open_then_reuse
reap.send = lambda fd, number: sent.append(number)
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
from node import reap
# a double: the process waits in the kernel, no signal acts
reap.send = lambda fd, number: None
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
    monkeypatch.setattr(orphans, "_unused_segments", lambda: unused)
    seen = {"gpus": None, "gpus_unreadable": None, "available": 60}
    lacks = orphans.memory_lacks(orphans.Wanted(None, 100), seen)
    assert (lacks == []) is enough


def test_memory_that_does_not_come_back_needs_a_reboot(world: World) -> None:
    world.launch()
    answer = world.reap(memory_available_bytes=1 << 49, settle_s=0)
    assert answer["verdict"] == "needs_reboot" and "MemAvailable is" in answer["evidence"]


def test_an_orphan_is_ended_its_port_freed_and_its_segment_removed(world: World) -> None:
    pid = world.launch("--port", str(PORT), "--segment", "psm_0123abcd")
    dry = world.reap(dry=True)
    assert (dry["verdict"], pids(dry["ended"])) == ("orphans", [pid])
    assert dry["ports"][0]["pids"] == [pid] and world.lives(pid)
    why = dry["ended"][0]["why"]
    assert f"title {TITLE}" in why and "maps /dev/shm/psm_*" in why and f"port {PORT}" in why
    assert "its parent is gone" in why and not (world.state / "journal").exists()
    answer = world.reap()
    assert (answer["verdict"], answer["ended"][0]["how"]) == ("clean", "TERM")
    assert not world.lives(pid) and not world.listens()
    assert answer["ports"] == [{"port": PORT, "pids": [], "held_by": None}]
    shm = world.call("shm", {"change": change(), "min_age_s": 0})
    assert [row["name"] for row in shm["removed"]] == ["psm_0123abcd"]
    assert world.sh("ls /dev/shm") == ""
    again = world.reap()
    assert (again["verdict"], again["ended"]) == ("nothing", [])
    journal = world.call("journal", {"change": "change-1"})["change"]
    steps = [(row["op"], row["state"]) for row in journal["steps"]]
    assert steps == [("reap", "done"), ("shm", "done")]
    known = journal["steps"][0]["identities"][0]
    assert (known["pid"], known["uid"], known["argv0"]) == (pid, 0, TITLE)
    undone = world.call("undo")
    assert undone["status"] == "ROLLED_BACK" and "cannot be undone" in undone["steps"][0]["detail"]


@pytest.mark.parametrize("version", FOUND)
def test_under_every_python(world: World, version: str) -> None:
    pid = world.launch("--segment", "psm_0123abcd")
    world.python = FOUND[version]
    assert pids(world.reap()["ended"]) == [pid]
    assert world.call("shm", {"min_age_s": 0})["freed_bytes"] == 4096
    assert world.call("caches", {"need_free_bytes": 1 << 49, "dry": True})["ok"]


def test_an_engine_whose_parent_lives_is_spared_and_named(world: World) -> None:
    pid = world.launch("--port", "8000", stay=True)
    answer = world.reap()
    assert (answer["verdict"], answer["ended"], world.lives(pid)) == ("nothing", [], True)
    (row,) = answer["spared"]
    assert row["pid"] == pid and "its parent pid" in row["why"] and "lives" in row["why"]
    refused = world.reap(ports=[8000])
    assert refused["verdict"] == "refused"
    assert f"port 8000 is held by pid {pid}" in refused["evidence"]


def serve(world: World, line: str, *more: str) -> int:
    """A `vllm serve` that a shell starts by hand; SERVE in its line. Gives the server's pid."""
    server = world.root / "vllm"
    server.write_text(STAND_IN.read_text().replace("parse_args()", "parse_known_args()[0]"))
    ready = world.root / "server-ready"
    words = f"{world.python} -I {server} serve --ready {ready} {' '.join(more)}"
    line = line.replace("SERVE", words)
    subprocess.run(world.enter(["setsid", "-f", "bash", "-c", line]), check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    world.until(ready.exists)
    return int(ready.read_text())


def test_a_server_of_a_shell_that_lives_is_spared_its_lost_worker_is_not(world: World) -> None:
    # ( … & ): the server is left to init, while the shell that started it lives on
    pid = serve(world, "(SERVE &); sleep 600")
    worker = world.launch()
    answer = world.reap()
    assert pids(answer["ended"]) == [worker] and world.lives(pid)
    assert "the shell that started it lives" in answer["spared"][0]["why"]


NOHUP = "nohup SERVE > /dev/null 2>&1 &"


@pytest.mark.parametrize("ports", [[], [PORT]], ids=["no ports", "other ports"])
def test_a_live_server_that_was_started_by_hand_is_spared(world: World, ports: list[int]) -> None:
    """Its shell is gone, as after a logout: it serves, whoever left it there."""
    pid = serve(world, NOHUP, "--port", "8011", "--segment", "psm_0123abcd")
    world.until(lambda: world.parent(pid) == 1)
    lost = world.launch()
    answer = world.reap(ports=ports)
    assert pids(answer["ended"]) == [lost] and world.lives(pid) and world.listens(8011)
    (row,) = answer["spared"]
    assert row["pid"] == pid and "serves on port 8011" in row["why"]
    # who means it names its port, as the line says
    assert """rignode reap '{"ports": [8011]}'""" in row["why"]
    named = world.call("reap", {"ports": [8011], "term_s": 3, "settle_s": 3})
    assert (named["verdict"], pids(named["ended"])) == ("clean", [pid]) and not world.lives(pid)


def test_a_server_that_was_started_by_hand_on_our_port_is_in_the_way(world: World) -> None:
    pid = serve(world, NOHUP, "--port", str(PORT))
    world.until(lambda: world.parent(pid) == 1)
    answer = world.reap()
    assert (answer["verdict"], pids(answer["ended"])) == ("clean", [pid])
    assert f"listens on port {PORT}" in answer["ended"][0]["why"]


def test_a_server_that_does_not_listen_any_more_is_an_orphan(world: World) -> None:
    pid = serve(world, NOHUP)
    world.until(lambda: world.parent(pid) == 1)
    assert pids(world.reap(ports=[])["ended"]) == [pid]


def test_a_shell_that_only_mentions_the_engine_is_no_candidate(world: World) -> None:
    text = f"sleep 600 # {TITLE} vllm serve"
    subprocess.run(world.enter(["setsid", "-f", "bash", "-c", f"{text}\n:"]), check=True)
    script = world.root / "talk.py"
    script.write_text("import sys, time; time.sleep(600)")
    subprocess.run(world.enter(["setsid", "-f", "python3", str(script), TITLE]), check=True)
    orphan = world.launch()
    answer = world.reap()
    assert pids(answer["ended"]) == [orphan] and answer["spared"] == []
    left = world.sh("pgrep -cf '[V]LLM::Worker'")
    assert left == "2", "the shell and the script live on"


def test_own_ancestors_are_spared(world: World) -> None:
    request = world.file("request.json", json.dumps(reap_request()))
    call = " ".join(world.argv("reap")[len(world.enter([])) :])
    # the caller bears an engine's title, and so does its parent
    inner = world.file("inner.sh", f"{call} < {request}\n:\n")
    outer = world.file("outer.sh", f"(exec -a {TITLE} bash {inner})\n:\n")
    line = f"exec -a {TITLE} bash {outer}"
    done = subprocess.run(world.enter(["setsid", "bash", "-c", line]), env=world.environ(),
                          capture_output=True, text=True)  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer["ended"] == [] and len(answer["spared"]) == 2, done
    assert all("own ancestors" in row["why"] for row in answer["spared"])


def test_a_name_that_the_kernel_cut_is_a_sign(world: World) -> None:
    pid = world.launch("--comm", "VLLM::EngineCore_DP0", title="python3")
    assert world.sh(f"cat /proc/{pid}/comm") == "VLLM::EngineCor"
    assert pids(world.reap()["ended"]) == [pid]


def test_signs_that_any_program_may_have_are_not_enough(world: World) -> None:
    pid = world.launch("--segment", "psm_0000ff00", title="python3")
    world.gpu(15000, pid)
    answer = world.reap()
    assert (answer["verdict"], world.lives(pid)) == ("nothing", True)
    assert "not proven to be an engine" in answer["spared"][0]["why"]
    assert "computes on a GPU; maps /dev/shm/psm_*" in answer["spared"][0]["why"]


def test_a_foreign_process_on_the_port_refuses_and_ends_nothing(world: World) -> None:
    orphan = world.launch()
    foreign = world.launch("--port", str(PORT), title="python3")
    world.unit("active")
    answer = world.reap(hold=True)
    assert (answer["verdict"], answer["ended"]) == ("refused", [])
    assert f"port {PORT} is held by pid {foreign}" in answer["evidence"]
    assert world.lives(orphan) and world.lives(foreign)
    assert not (world.bin / "units" / "log").exists(), "systemctl was called"


def test_one_that_ignores_term_is_killed_after_its_time(world: World) -> None:
    pid = world.launch("--ignore-term")
    answer = world.reap(term_s=1)
    assert (answer["verdict"], answer["ended"][0]["how"]) == ("clean", "KILL")
    assert not world.lives(pid) and 1 <= answer["took_s"] < 3


def test_another_users_process_is_spared(world: World) -> None:
    world.sh("mkdir -m 777 /run/theirs")
    world.sh(f"cp {STAND_IN} /run/theirs/program.py")
    pid = int(world.code(AS_NOBODY, {})["pid"])
    answer = world.reap()
    assert answer["ended"] == [] and "another user (uid 65534)" in answer["spared"][0]["why"]
    world.env["SUDO_UID"] = "65534"
    assert pids(world.reap()["ended"]) == [pid]


AS_NOBODY = f"""
import json, os, sys, time
ready = "/run/theirs/ready"
if os.fork() == 0:
    os.setsid()
    os.setgid(65534); os.setuid(65534)
    os.environ["PYTHONHOME"] = "/usr"
    argv = [{TITLE!r}, "/run/theirs/program.py", "--ready", ready]
    sys.stdout.flush(); os.dup2(os.open(os.devnull, os.O_RDWR), 1); os.dup2(1, 2)
    os.execv("/usr/bin/python3", argv)
while not os.path.exists(ready): time.sleep(0.01)
print(json.dumps({{"pid": open(ready).read()}}))
"""


@pytest.mark.parametrize(("more", "words"), [
    ({"hold": True, "change": None}, "hold needs a change"),
    ({"vram_free_mib": 10}, "there is no nvidia-smi here"),
    ({"ports": ["8000"]}, "ports[0] is not a number"), ({"ports": [0]}, "ports[0] is not a number"),
    ({"unit": "-x.service"}, "unit name"), ({"pattern": "VLLM"}, "unknown key 'pattern'"),
])  # fmt: skip
def test_bad_requests(world: World, more: dict[str, object], words: str) -> None:
    answer = world.reap(**more)
    assert answer["code"] == "bad_request" and words in answer["error"]


def test_a_second_reap_at_once_is_refused(world: World) -> None:
    pid = world.launch("--ignore-term")
    first = subprocess.Popen(world.argv("reap", json.dumps(reap_request(term_s=60))),
                             env=world.environ(), stdout=subprocess.PIPE, text=True)  # fmt: skip
    world.until(lambda: world.call("lock")["held"])
    second = world.reap()
    assert second["code"] == "locked" and "(reap serve by tester@here" in second["error"]
    world.sh(f"kill -KILL {pid}")  # the first waits for it until now, on a busy machine, too
    answer = json.loads(first.communicate(timeout=60)[0])
    assert pids(answer["ended"]) == [pid] and answer["verdict"] == "clean"


# reap with a held unit, killed at any write of the journal: the next run, or undo, finishes.

HOLD = f"/run/systemd/system/{reap_world_UNIT}.d/99-rigbook-hold.conf"


def reset(world: World) -> int:
    """An empty journal, a running unit, no hold, and one orphan; gives its pid."""
    for path in sorted(world.state.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    units = world.bin / "units"
    world.unit("active")
    (units / f"{reap_world_UNIT}.enabled").write_text("enabled\n")
    (units / "log").write_text("")
    world.sh("rm -rf /run/systemd/system/*")
    if world.last and world.lives(world.last):
        world.sh(f"kill -9 {world.last}")
        world.until(lambda: not world.listens())
    world.last = world.launch("--port", str(PORT))
    return world.last


def states(world: World) -> tuple[str, str, bool]:
    """Active state, enabled state, and whether the hold is there."""
    enabled = (world.bin / "units" / f"{reap_world_UNIT}.enabled").read_text().strip()
    return world.unit(), enabled, world.sh(f"ls {HOLD}") != ""


REQUEST = reap_request(hold=True, term_s=1, settle_s=2)


def test_the_unit_is_held_while_orphans_are_ended_and_given_back(world: World) -> None:
    reset(world)
    # what a start of the unit would meet meanwhile: the double notes it when the stop is done
    double = world.bin / "systemctl"
    note = f'[ "$1 $2" = "--no-ask-password stop" ] && cat {HOLD} > "$(dirname "$0")/seen"\n'
    double.write_text(double.read_text().replace("\n", f"\n{note}", 1))
    answer = world.call("reap", REQUEST)
    assert answer["verdict"] == "clean" and states(world) == ("active", "enabled", False)
    seen = (world.bin / "seen").read_text()
    assert f"AssertPathExists=!{HOLD}" in seen and "Restart=no" in seen
    assert answer["unit"] == {
        "unit": reap_world_UNIT, "held": True, "why": "stopped, and starts are refused meanwhile",
        "before": {"load": "loaded", "enabled": "enabled", "active": "active"},
        "restored": f"the hold is lifted; {reap_world_UNIT} is starting again, as before",
    }  # fmt: skip
    log = (world.bin / "units" / "log").read_text().splitlines()
    calls = [line for line in log if not line.startswith(("show", "reset-failed"))]
    assert calls == [
        "daemon-reload ",
        f"stop {reap_world_UNIT}",
        "daemon-reload ",
        f"start --no-block {reap_world_UNIT}",
    ]
    assert world.call("close", {"change": "change-1", "status": "COMMITTED"})["changed"]


def test_a_unit_that_did_not_run_is_not_started(world: World) -> None:
    reset(world)
    world.unit("inactive")
    assert world.call("reap", REQUEST)["verdict"] == "clean"
    assert states(world) == ("inactive", "enabled", False)


def test_without_orphans_a_running_unit_is_left_alone(world: World) -> None:
    world.sh(f"kill -9 {reset(world)}")
    world.until(lambda: not world.listens())
    answer = world.call("reap", REQUEST)
    assert (answer["verdict"], answer["unit"], answer["change"]) == ("nothing", None, None)
    assert "stop" not in (world.bin / "units" / "log").read_text()
    assert world.call("journal")["changes"] == []


def test_killed_at_each_write_of_the_journal_the_next_run_finishes(
    world: World, tmp_path: Path
) -> None:
    log = tmp_path / "strace.log"
    reset(world)
    found = strace.points(world, "reap", json.dumps(REQUEST), log)
    points = [p for p in found if p[0] in ("rename", "renameat", "unlink", "unlinkat")]
    # the first flush of each write comes before its rename, the second after it
    points += [p for p in found if p[0] == "fsync"][1::2]
    assert len(points) > 12
    for n, point in enumerate(points):
        pid = reset(world)
        done = strace.inject(world, "reap", json.dumps(REQUEST), "signal=SIGKILL", point, log)
        assert done.returncode != 0, point
        if n % 3 == 2:
            assert world.call("undo")["ok"], point
            assert states(world) == ("active", "enabled", False), point
            continue
        answer = world.call("reap", REQUEST)
        assert answer["ok"] and answer["verdict"] in ("clean", "nothing"), (point, answer)
        assert states(world) == ("active", "enabled", False), (point, answer["unit"])
        assert not world.lives(pid) and not world.listens(), point
        if answer["change"]:
            steps = world.call("journal", {"change": "change-1"})["change"]["steps"]
            assert {row["state"] for row in steps} <= {"done", "undone"}, point
            closed = world.call("close", {"change": "change-1", "status": "COMMITTED"})
            assert closed["ok"], (point, closed)


def test_another_change_is_refused_while_one_holds_the_unit(world: World, tmp_path: Path) -> None:
    reset(world)
    log = tmp_path / "strace.log"
    points = strace.points(world, "reap", json.dumps(REQUEST), log)
    rename = [p for p in points if p[0].startswith("rename")]
    reset(world)
    strace.inject(world, "reap", json.dumps(REQUEST), "signal=SIGKILL", rename[3], log)
    assert states(world)[2] is True
    other = world.call("reap", {**REQUEST, "change": change("change-2")})
    assert other["code"] == "change_open" and "rignode undo change-1" in other["remedy"]
    assert states(world)[2] is True
    world.call("undo")
    assert states(world) == ("active", "enabled", False)


# shm: only engine segments that nobody maps or has open go; all others stay, with the reason.

# as CPU ranks name it (vllm/distributed/device_communicators/cpu_communicator.py, 0.32.0)
RANKS = "vllm_dist_0f3a-tp:0-[0-1]-cpushm_0"
STRANGE = "vllm_dist_0f3a-tp:0-cpushm_0"


def request(**more: object) -> dict[str, object]:
    """A request without a wait for young segments."""
    return {"change": change(), "min_age_s": 0, **more}


def test_only_what_nobody_uses_is_removed(world: World) -> None:
    live = world.launch("--segment", "psm_aaaa0001", stay=True)
    for name in ("psm_bbbb0002", "sem.mp-old", "other", RANKS, STRANGE):
        world.sh(f"echo x > '/dev/shm/{name}'")
    world.sh("mkdir /dev/shm/psm_dir; ln -s /etc/passwd /dev/shm/psm_link")
    opener = "import time; f = open('/dev/shm/psm_cccc0003', 'w'); time.sleep(600)"
    world.sh(f'setsid -f python3 -c "{opener}" > /dev/null 2>&1')
    world.until(lambda: "psm_cccc0003" in world.sh("ls /dev/shm"))
    before = world.sh("ls /dev/shm")
    dry = world.call("shm", request(dry=True))
    assert world.sh("ls /dev/shm") == before and not (world.state / "journal").exists()
    answer = world.call("shm", request())
    for got in (dry, answer):
        assert [row["name"] for row in got["removed"]] == ["psm_bbbb0002", "sem.mp-old", RANKS]
        kept = {row["name"]: row["why"] for row in got["kept"]}
        assert sorted(kept) == ["psm_aaaa0001", "psm_cccc0003"]
        assert kept["psm_aaaa0001"] == f"in use by pid {live}"
        assert kept["psm_cccc0003"].startswith("in use by pid")
        assert got["freed_bytes"] == 6
    assert world.sh("ls /dev/shm").split() == [
        "other", "psm_aaaa0001", "psm_cccc0003", "psm_dir", "psm_link", STRANGE]  # fmt: skip
    step = world.call("journal", {"change": "change-1"})["change"]["steps"][0]
    assert (step["op"], step["state"]) == ("shm", "done")
    assert step["removed"] == ["psm_bbbb0002", "sem.mp-old", RANKS]
    again = world.call("shm", request())
    assert (again["removed"], len(world.call("journal")["changes"][0]["steps"])) == ([], 1)


@pytest.mark.parametrize("after", ["", "; touch -d '2 days ago' /dev/shm/psm_bbbb0002"])
def test_a_young_segment_is_kept(world: World, after: str) -> None:
    """The kernel's own time of the last change counts as well: no writer can set that one."""
    world.sh(f"echo x > /dev/shm/psm_bbbb0002{after}")
    answer = world.call("shm", request(min_age_s=60))
    assert answer["removed"] == [] and "is not mapped yet" in answer["kept"][0]["why"]
    assert answer["change"] is None and world.call("journal")["changes"] == []


def test_what_an_engine_left_a_moment_ago_is_waited_for(world: World) -> None:
    """A stop is over in a second; its engine's segments are younger than any that may go."""
    world.sh("echo x > /dev/shm/psm_bbbb0002")
    answer = world.call("shm", {"change": change(), "min_age_s": 2})
    assert [row["name"] for row in answer["removed"]] == ["psm_bbbb0002"]


RACE = """
import json, os, sys
from node import reap
look, calls = reap.users, []
def users(fd, wanted):  # a double: the world moves on between the first look and the second
    seen = look(fd, wanted)
    calls.append(1)
    if len(calls) == 1:
        DO
    return seen
reap.users = users
print(json.dumps(reap.shm(json.load(sys.stdin))))
"""


@pytest.mark.parametrize(("action", "why"), [
    ("globals().update(kept=open('/dev/shm/psm_bbbb0002'))", "in use by pid"),
    ("os.rename('/dev/shm/other', '/dev/shm/psm_bbbb0002')", "another segment has its name now"),
    ("os.unlink('/dev/shm/psm_bbbb0002')", "gone meanwhile"),
])  # fmt: skip
def test_what_changes_between_look_and_removal_is_kept(world: World, action: str, why: str) -> None:
    world.sh("cd /dev/shm; echo x > psm_bbbb0002; echo new > other")
    answer = world.code(RACE.replace("DO", action), request())
    assert answer["removed"] == [] and answer["kept"][0]["why"].startswith(why)
    if "rename" in action:
        assert world.sh("cat /dev/shm/psm_bbbb0002") == "new"


UNREADABLE = """
import builtins, json, sys
from node import reap
def guarded(path, *more):  # a double: a sandbox hides one process
    if str(path) == "/proc/2/maps":
        raise PermissionError
    return builtins.open(path, *more)
reap.open = guarded
reap.proc.pids = lambda: [1, 2]
print(json.dumps(reap.shm(json.load(sys.stdin))))
"""


def test_a_process_that_cannot_be_read_keeps_everything(world: World) -> None:
    world.sh("echo x > /dev/shm/psm_bbbb0002")
    answer = world.code(UNREADABLE, request())
    assert (answer["removed"], answer["freed_bytes"]) == ([], 0)
    assert answer["kept"][0]["why"] == "whether pid 2 maps it cannot be read"


@pytest.mark.parametrize(("name", "ours"), [
    (RANKS, True), ("29501-tp:0-[0-1]-cpushm_1", True), ("psm_1a2b", True), ("sem.mp-x", True),
    ("psm_", False), ("x-cpushm_0", False), (f"{RANKS}x", False), ("../psm_1", False),
    ("postgres.1", False),
])  # fmt: skip
def test_names_are_judged_alike_on_both_sides(name: str, ours: bool) -> None:
    """A segment of the snapshot asks the same rule."""
    segment = ShmSegment(name=name, size=1, uid=0, inode=1, mtime=0.0, mappers=())
    assert (engine.is_engines(name), segment.is_engines) == (ours, ours)
