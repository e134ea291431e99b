"""reap: orphans are ended and proven gone; whatever has an owner, or is not proven, is spared."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.unit.node.cli.test_pythons import FOUND
from tests.unit.node.support.host import change
from tests.unit.node.support.reap_world import PORT, STAND_IN, TITLE, World, pids, reap_request


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
