"""prelaunch: the order of a start, what it waits for, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import CannotRead, NodeError
from node.docker import api
from node.engine import peer
from node.engine import start as engine_start
from node.transfer import manifest
from tests.unit.node.support.host import Host, engine, engine_file


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting that a test does not ask for."""
    monkeypatch.setattr(engine_start, "PRELAUNCH_POLL_S", 0.01)
    monkeypatch.setattr(engine_start, "PROGRESS_S", 0.05)
    monkeypatch.setattr(engine_start, "MEMORY_WAIT_S", 0.1)
    monkeypatch.setattr(engine_start, "DOCKER_WAIT_S", 0.1)


PARTS = (("link", peer, "missing_link", None), ("mtu", peer, "link_mtu", 9000),
         ("docker", api, "daemon_answers", True), ("leftover", api, "remove_container", False),
         ("orphans", engine_start, "end_orphans", []), ("peer", peer, "peer_answers", True),
         ("short", engine_start, "shortage", None))  # fmt: skip


class Machine:
    """What a start meets, part by part, and the order in which it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {}
        for key, module, name, answer in PARTS:
            self.answers[key] = answer
            monkeypatch.setattr(module, name, self._part(key))
        monkeypatch.setattr(engine_start, "drop_caches", lambda *_: "page cache: dropped")

    def _part(self, key: str) -> Callable[..., Any]:
        def ask(*_: object, **__: object) -> Any:
            self.asked.append(key)
            answer = self.answers[key]
            if isinstance(answer, Exception):
                raise answer
            return answer() if callable(answer) else answer

        return ask


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def start(**changes: Any) -> None:
    engine_start.prelaunch(engine(**changes))


def half(folder: Path) -> None:
    """Weights whose switch was cut off."""
    with manifest.Folder(str(folder)).own() as own:
        manifest.mark_beside(own, "20260101T000000Z-weights-1a2b")


def test_weights_that_are_half_of_two_sets_are_not_loaded(machine: Machine, tmp_path: Path) -> None:
    """Restart=always would start it at once, and the engine would load the mix without an error."""
    start(weights=str(tmp_path))
    half(tmp_path)
    machine.asked.clear()
    with pytest.raises(NodeError) as caught:
        start(weights=str(tmp_path))
    assert caught.value.code == "weights_incomplete" and machine.asked == []
    assert "20260101T000000Z-weights-1a2b was cut off" in str(caught.value)
    assert "\n" not in str(caught.value) and "rignode undo 2026" in caught.value.remedy


def test_weights_that_are_switched_while_it_waits_are_not_loaded_either(
    machine: Machine, tmp_path: Path
) -> None:
    machine.answers["peer"] = lambda: half(tmp_path) or True
    with pytest.raises(NodeError, match="half of one set"):
        start(weights=str(tmp_path))


def test_a_start_in_order(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    start()
    order = ["link", "mtu", "docker", "leftover", "orphans", "peer", "short"]
    assert list(dict.fromkeys(machine.asked)) == order
    assert capsys.readouterr().out == ""


def test_the_fabric_may_be_late(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.answers["link"] = lambda: "no device bond0" if len(machine.asked) <= 12 else None
    start()
    said = capsys.readouterr().out.splitlines()
    assert "waiting for the fabric (lo, 127.0.0.1)" in said[0] and "no device bond0" in said[0]
    assert len(said) < 8 and "there after" in said[-1]
    assert machine.asked.index("docker") > 12


@pytest.mark.parametrize(("part", "answer", "said", "code"), [
    ("link", "bond0 has no carrier", "the fabric.*no carrier", "not_ready"),
    ("docker", False, "docker: no answer yet", "not_ready"),
    ("leftover", CannotRead("docker is gone"), "docker is gone", "not_ready"),
    ("orphans", NodeError("port 29501 is held by nc", "orphans"), "29501", "orphans"),
    ("peer", False, "the peer 127.0.0.2: no answer on the fabric", "not_ready"),
    ("short", engine_start.Shortage("3 GiB available, 4 GiB needed", 4), "4 GiB needed",
     "memory_short"),
    ("short", CannotRead("nvidia-smi failed (9)"), "nvidia-smi failed", "memory_short"),
])  # fmt: skip
def test_what_does_not_come_refuses_the_start(
    machine: Machine, part: str, answer: object, said: str, code: str
) -> None:
    machine.answers[part] = answer
    with pytest.raises(NodeError, match=said) as caught:
        start(start_budget_s=1, fabric={"device": "lo", "address": "127.0.0.1", "mtu": 9000,
                                        "wait_s": 0.1})  # fmt: skip
    assert caught.value.code == code
    assert machine.asked[-1] == part


class Clock:
    """A clock that moves only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(engine_start, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_wait_ends_with_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(NodeError, match="docker: no answer yet, after 7 s"):
        engine_start.wait_for_memory("docker", 7.0, lambda: "no answer yet")
    assert clock.now == pytest.approx(1007, abs=0.1)


def test_all_peers_share_one_budget(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that are late must not let a head wait for twice its start budget."""
    clock = Clock(monkeypatch)
    machine.answers["peer"] = lambda: clock.now >= 1020
    engine_start.wait_for_peers(engine(peers=["127.0.0.2", "127.0.0.3"]))
    asked: list[str] = []

    def answers(peer: str, source: str) -> bool:
        asked.append(peer)
        return peer == "127.0.0.2" and clock.now >= 1040

    monkeypatch.setattr(peer, "peer_answers", answers)
    with pytest.raises(NodeError, match=r"the peer 127\.0\.0\.3: no answer"):
        engine_start.wait_for_peers(engine(peers=["127.0.0.2", "127.0.0.3"]))
    assert clock.now == pytest.approx(1050, abs=0.1)
    assert set(asked) == {"127.0.0.2", "127.0.0.3"}


ALONE: dict[str, Any] = {"fabric": None, "peers": [], "master": None}
VENV = {"path": "/opt/engine/venv", "user": "milo", "version": None}


@pytest.mark.parametrize(("changes", "asked"), [
    ({"role": "worker", "rank": 1, "endpoint": None},
     ["link", "mtu", "docker", "leftover", "orphans", "short"]),
    (ALONE, ["docker", "leftover", "orphans", "short"]),
    # a tower has no docker; a start that waited for it would never come
    ({**ALONE, "container": None, "image": None, "venv": VENV}, ["orphans", "short"]),
])  # fmt: skip
def test_only_what_the_engine_needs_is_asked(
    machine: Machine, changes: dict[str, Any], asked: list[str]
) -> None:
    """A worker waits for no peer, one node for no fabric, a venv for no docker."""
    for part, answer in (("link", "no device"), ("peer", False), ("docker", False),
                         ("leftover", CannotRead("no docker here"))):  # fmt: skip
        if part not in asked:
            machine.answers[part] = answer
    start(**changes)
    assert list(dict.fromkeys(machine.asked)) == asked


def test_what_differs_and_what_was_cleared_is_told(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.answers.update(mtu=1500, leftover=True,
                           orphans=["ended pid 7 VLLM::Worker_TP0 (TERM): why"])  # fmt: skip
    start()
    said = capsys.readouterr().out
    assert "lo has MTU 1500, the rig wants 9000" in said
    assert "removed the container rigbook-engine" in said and "ended pid 7" in said


IP = """\
#!/bin/sh
# rigbook stand-in for ip
for last; do :; done
case $last in
bond0) echo '[{"ifname":"bond0","flags":["UP","LOWER_UP"],"addr_info":[{"local":"10.0.0.1"}]}]';;
down) echo '[{"ifname":"down","flags":["UP"],"addr_info":[{"local":"10.0.0.1"}]}]';;
bare) echo '[{},{"ifname":"bare","flags":["UP","LOWER_UP"],"addr_info":[]}]';;
odd) echo 'nonsense';;
*) echo "Device does not exist." >&2; exit 1;;
esac
"""


@pytest.mark.parametrize(("device", "said"), [
    ("bond0", None), ("down", "down has no carrier"), ("odd", "ip says nothing about odd"),
    ("bare", "bare has no 10.0.0.1 (it has no address)"), ("none", "no device none"),
])  # fmt: skip
def test_our_end_of_the_fabric(
    host: Host, monkeypatch: pytest.MonkeyPatch, device: str, said: str | None
) -> None:
    host.double("ip", IP)
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    assert peer.missing_link(device, "10.0.0.1") == said


def test_a_peer_answers_by_refusing() -> None:
    """A real connect: a host that is there refuses, one that is not lets it time out."""
    assert peer.peer_answers("127.0.0.2", "127.0.0.1", 1.0)
    assert not peer.peer_answers("192.0.2.1", "127.0.0.1", 0.2)
    assert not peer.peer_answers("127.0.0.2", "192.0.2.9", 0.2)


def test_orphans_are_reaped_without_a_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    row = {"pid": 7, "argv0": "VLLM::Worker_TP0", "how": "TERM", "why": "its parent is gone"}
    answer = {"verdict": "clean", "evidence": "", "ended": [row]}
    monkeypatch.setattr(engine_start, "reap", lambda request: asked.append(request) or answer)
    removed = {"removed": [{"name": "psm_1"}], "freed_bytes": 400 << 20}
    monkeypatch.setattr(engine_start, "shm", lambda request: removed)
    said = engine_start.end_orphans(engine())
    assert asked == [{"unit": "rigbook-engine.service", "container": "rigbook-engine",
                      "ports": [8000, 29501], "hold": False}]  # fmt: skip
    assert said == ["ended pid 7 VLLM::Worker_TP0 (TERM): its parent is gone",
                    "removed from /dev/shm (400 MiB): psm_1"]  # fmt: skip
    for verdict in ("refused", "needs_reboot"):
        answer.update(verdict=verdict, evidence="port 29501 is held by pid 9 nc")
        with pytest.raises(NodeError, match=f"{verdict}: port 29501 is held by pid 9 nc"):
            engine_start.end_orphans(engine())


def test_the_verb_is_one_line_and_a_status(host: Host) -> None:
    """The real program, on a machine where the fabric's device is missing."""
    engine_file(host, fabric={"device": "nope0", "address": "10.0.0.1", "mtu": 9000, "wait_s": 0})
    done = host.run(host.argv("prelaunch"))
    assert done.returncode == 1 and done.stderr == ""
    assert done.stdout == "prelaunch: the fabric (nope0, 10.0.0.1): no device nope0, after 0 s\n"
    assert host.run(host.argv("container start")).returncode == 2


@pytest.mark.parametrize("changes", [{"venv": VENV}, {"container": None}, {"venv": {"path": "/x"}}])
def test_one_of_container_and_venv_runs_the_engine(changes: dict[str, Any]) -> None:
    with pytest.raises(NodeError):
        engine(**changes)
