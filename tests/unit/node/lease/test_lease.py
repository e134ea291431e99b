"""What a host does next: a table, and every order of events of two and three hosts by chance."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node import lease
from node.core.errors import NodeError
from node.lease import PHASES, Lease, View, WayBack, next_step
from node.rules.engine import Reply
from schema.snapshot import LeaseNote
from tests.unit.node.support.host import Host, apply_request, change, file_step, mode

HEAD, WORKER = "spark1", "spark2"


def view(phase: str, status: str = "OPEN", head: bool = False, hindrance: str = "") -> View:
    """A host's view."""
    return View(phase, status, head, hindrance)


EXPIRED, PROMISED = view("expired"), view("promised")


@pytest.mark.parametrize(
    ("me", "peer", "action", "why"),
    [
        (view("renewed"), EXPIRED, "wait", ""),
        (EXPIRED, None, "wait", "no answer from peer"),
        (EXPIRED, view("renewed"), "wait", "peer: renewed"),
        (EXPIRED, EXPIRED, "promise", ""),
        (EXPIRED, PROMISED, "promise", ""),
        (EXPIRED, view("expired", hindrance="edited"), "wait", "peer: edited"),
        (view("expired", hindrance="edited"), EXPIRED, "wait", "edited"),
        (EXPIRED, view("settled", "COMMITTED"), "commit", "peer"),
        (EXPIRED, view("settled", "ROLLED_BACK"), "promise", ""),
        (EXPIRED, view("settled", "INCONSISTENT"), "promise", ""),
        (PROMISED, None, "wait", "no answer from peer"),
        (PROMISED, view("renewed"), "wait", "peer: renewed"),
        (PROMISED, EXPIRED, "wait", "peer: expired"),
        (PROMISED, PROMISED, "stop", ""),
        (PROMISED, view("settled", "COMMITTED"), "commit", "peer"),
        (PROMISED, view("back"), "stop", ""),
        # the head's engine ends first and starts last
        (view("stopped"), view("promised", head=True), "wait", "peer: promised"),
        (view("stopped"), view("stopped", head=True), "undo", ""),
        (view("stopped"), None, "wait", "no answer from peer"),
        (view("stopped"), view("settled", "ROLLED_BACK", head=True), "undo", ""),
        (view("stopped", head=True), view("stopped"), "wait", "peer: stopped"),
        (view("stopped", head=True), view("back"), "undo", ""),
        (view("stopped", head=True), view("back", "INCONSISTENT"), "undo", ""),
        (view("back", head=True), None, "prove", ""),
        # the head sees the answer: the others say what it says
        (view("back"), view("back", head=True), "wait", "peer: back"),
        (view("back"), None, "wait", "no answer from the head"),
        (view("back"), view("settled", "ROLLED_BACK", head=True), "prove", "ROLLED_BACK"),
        (view("back"), view("settled", "INCONSISTENT", head=True), "prove", "INCONSISTENT"),
        (view("settled", "COMMITTED"), view("settled", "COMMITTED"), "leave", ""),
        (view("settled", "COMMITTED"), EXPIRED, "wait", "peer: expired"),
        (view("settled", "COMMITTED"), None, "wait", "no answer from peer"),
    ],
)
def test_two_hosts(me: View, peer: View | None, action: str, why: str) -> None:
    assert next_step(me, {"peer": peer}) == (action, why)


def test_the_engine_of_a_pair_stops_on_each_host() -> None:
    """Also where the change did not come so far: its rank has lost the other one."""
    touched = PROMISED._replace(engine=True)
    assert next_step(PROMISED, {"a": PROMISED, "b": touched}) == ("stop", "b")
    assert next_step(touched, {"a": PROMISED, "b": PROMISED}) == ("stop", "")


def test_a_rig_of_one_host_asks_nobody() -> None:
    steps = [next_step(view(phase, head=True), {})[0] for phase in PHASES]
    assert steps == ["wait", "promise", "stop", "undo", "prove", "leave"]


def test_what_contradicts_itself_is_left() -> None:
    peers = {"a": view("settled", "COMMITTED"), "b": view("settled", "ROLLED_BACK")}
    assert next_step(EXPIRED, peers) == ("wait", "a is COMMITTED and b is ROLLED_BACK")


@dataclass
class Model:
    """Hosts whose looks, losses, deaths and renewals come in any order. What is on a host's disk
    survives its death; whether its lease has run out does not.
    """

    rng: random.Random
    names: tuple[str, ...]
    phase: dict[str, str] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    run_lives: bool = True
    cut: set[frozenset[str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.phase = dict.fromkeys(self.names, "renewed")
        self.status = dict.fromkeys(self.names, "OPEN")

    def view(self, name: str) -> View:
        return View(self.phase[name], self.status[name], name == self.names[0])

    def look(self, name: str) -> None:
        """One look of a host, whose questions may be lost."""
        if self.phase[name] == "renewed" and self.rng.random() < 0.5:
            self.phase[name] = "expired"
        peers = {other: self.view(other)
                 if frozenset((name, other)) not in self.cut and self.rng.random() < 0.7 else None
                 for other in self.names if other != name}  # fmt: skip
        action, _ = next_step(self.view(name), peers)
        if action == "promise":
            self.phase[name] = "promised"
        elif action == "stop":
            assert all(self.view(n).is_at_least("promised") for n in self.names)
            self.phase[name] = "stopped"
        elif action == "undo":
            # the promise of each is on its disk, and the run's writes are refused everywhere
            assert all(self.view(n).is_at_least("promised") for n in self.names)
            assert "COMMITTED" not in self.status.values()
            if name == self.names[0]:
                assert all(self.view(n).is_at_least("back") for n in self.names[1:])
            else:
                assert self.view(self.names[0]).is_at_least("stopped")
            self.phase[name] = "back"
        elif action == "prove":
            if name != self.names[0]:
                assert self.status[self.names[0]] == "ROLLED_BACK"
            self.phase[name], self.status[name] = "settled", "ROLLED_BACK"
        elif action == "commit":
            assert "COMMITTED" in self.status.values()
            self.phase[name], self.status[name] = "settled", "COMMITTED"

    def event(self) -> None:
        """A death, a cut, a sign of life, or a part of the run's end."""
        name, what = self.rng.choice(self.names), self.rng.random()
        if what < 0.2:
            self.cut ^= {frozenset(self.rng.sample(self.names, 2))}
        elif what < 0.4 and self.phase[name] == "expired":
            self.phase[name] = "renewed"  # a reboot: the lease begins anew
        elif what < 0.5:
            self.run_lives = False
        elif self.run_lives:
            open_here = self.phase[name] in ("renewed", "expired")
            if what < 0.9 and open_here:
                self.phase[name] = "renewed"
            elif open_here:
                self.closes()

    def closes(self) -> None:
        """The run has proven the rig: it closes the change host by host, and may die between. One
        that has promised refuses.
        """
        for name in self.names:
            if self.rng.random() < 0.3:
                self.run_lives = False
                return
            if self.phase[name] in ("renewed", "expired"):
                self.phase[name], self.status[name] = "settled", "COMMITTED"
            elif self.phase[name] != "settled":
                self.run_lives = False


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_no_order_of_events_leaves_half(hosts: int) -> None:
    """Never: one host back and another COMMITTED. Once all are heard again: all ended, as one."""
    ends = set()
    for seed in range(400):
        rng = random.Random(seed)
        model = Model(rng, tuple(f"n{n}" for n in range(hosts)))
        for _ in range(rng.randrange(5, 60)):
            model.look(rng.choice(model.names)) if rng.random() < 0.7 else model.event()
        model.run_lives, model.cut = False, set()
        for _ in range(400):
            model.look(rng.choice(model.names))
        assert set(model.phase.values()) == {"settled"}, (seed, model.phase)
        assert len(set(model.status.values())) == 1, (seed, model.status)
        ends |= set(model.status.values())
    assert ends == {"COMMITTED", "ROLLED_BACK"}


def test_the_model_fails_where_a_host_goes_back_without_a_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model can fail: with one phase in place of two, a host goes back alone."""
    real = lease.next_step

    def hasty(me: View, peers: lease.Peers) -> tuple[str, str]:
        action, why = real(me, peers)
        return ("stop", "") if me.phase == "promised" and action == "wait" else (action, why)

    monkeypatch.setitem(globals(), "next_step", hasty)
    with pytest.raises(AssertionError):
        test_no_order_of_events_leaves_half(2)


# One question, one answer: what is old, forged or somebody else's says nothing.

KEY, OTHER = b"k" * 32, b"o" * 32
SAID = View("promised", "OPEN", True, "", True)


@pytest.fixture
def port() -> Iterator[int]:
    """A host spark1 at 127.0.0.1 that answers about change-1."""
    sock = lease.listening_socket("127.0.0.1", 0)
    sock.settimeout(0.1)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                lease.answer_peer(sock, KEY, "change-1", "spark1", SAID)
            except TimeoutError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    yield sock.getsockname()[1]
    over.set()
    thread.join()
    sock.close()


def test_a_host_says_how_far_it_is(port: int) -> None:
    assert lease.ask_peer("127.0.0.1", port, KEY, "change-1", "spark1") == SAID


@pytest.mark.parametrize(
    ("key", "change", "node"),
    [
        (OTHER, "change-1", "spark1"),
        (KEY, "change-2", "spark1"),
        (KEY, "change-1", "spark2"),
    ],
    ids=["another key", "another change", "another host"],
)
def test_who_is_not_asked_says_nothing(
    port: int, key: bytes, change: str, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "ANSWER_S", 0.2)
    assert lease.ask_peer("127.0.0.1", port, key, change, node) is None


@pytest.mark.parametrize(
    "raw",
    [b"", b"x" * 2000, lease._pack(OTHER, {"tell": "change-1"}),
     lease._pack(KEY, {"tell": "x"}),
     lease._pack(KEY, {"tell": "change-1", "nonce": "old", "from": "spark1", **SAID._asdict()}),
     b"0" * 64 + b"{"],
    ids=["nothing", "noise", "another key", "another change", "an old answer", "no JSON"],
)  # fmt: skip
def test_what_is_no_answer_is_taken_for_none(raw: bytes) -> None:
    """An answer that was kept and is sent again has another nonce."""
    with lease.listening_socket("127.0.0.1", 0) as sock:

        def replay() -> None:
            sock.sendto(raw, sock.recvfrom(2048)[1])

        thread = threading.Thread(target=replay)
        thread.start()
        port = sock.getsockname()[1]
        assert lease.ask_peer("127.0.0.1", port, KEY, "change-1", "spark1") is None
        thread.join()


def test_nobody_who_listens_refuses() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        lease.ask_peer("127.0.0.1", port, KEY, "change-1", "spark1")


def test_a_question_without_the_key_gets_no_answer(port: int) -> None:
    """A stranger learns nothing, not even that somebody listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.2)
        sock.connect(("127.0.0.1", port))
        sock.send(b"0" * 64 + json.dumps({"ask": "change-1", "of": "spark1"}).encode())
        with pytest.raises(TimeoutError):
            sock.recv(100)


def test_an_address_that_is_not_up_yet_can_be_listened_at() -> None:
    """The fabric's address comes late at boot (192.0.2.0/24 is of no host)."""
    lease.listening_socket("192.0.2.7", 0).close()


# The verb `lease`: the change is open and kept before its first step.

ARM_KEY = "5" * 64


def asked(**more: object) -> dict[str, Any]:
    """A request for a lease of change-1."""
    lease: dict[str, object] = {
        "seconds": 120, "key": ARM_KEY, "node": "spark1", "head": True, "port": 29530,
        "addresses": ["10.0.0.1"], "peers": {"spark2": ["10.0.0.2", "192.168.1.2"]}, **more,
    }  # fmt: skip
    return {"change": change(run="a1"), "lease": lease}


def test_the_keeper_is_there_before_the_first_step(host: Host) -> None:
    units = host.systemctl()
    answer = host.call("lease", asked())
    assert (answer["change"], answer["status"]) == ("change-1", "OPEN")
    unit = host.state / "units" / lease.LEASE_UNIT
    assert f"ExecStart={host.pyz} lease keep" in unit.read_text() and mode(unit) == 0o644
    link = host.state / "units" / "multi-user.target.wants" / lease.LEASE_UNIT
    assert link.is_symlink() and link.resolve() == unit
    assert mode(host.state / "lease.json") == 0o600
    log = (units / "log").read_text().splitlines()
    assert log == ["daemon-reload ", f"restart {lease.LEASE_UNIT}"]
    # the key is in no journal, which people and operators read
    assert ARM_KEY not in (host.state / "journal" / "change-1.json").read_text()
    row = host.call("journal")
    assert row["changes"][0]["lease"] == {"seconds": 120}
    text = host.run(host.argv("status")).stdout
    assert "    lease: 120 s; journalctl -u rigbook-lease\n" in text
    # the run's steps go into the same change
    step = apply_request(file_step(host.file()), run="a1")
    assert host.call("apply", step)["change"] == "change-1"


def test_a_second_lease_takes_the_place_of_the_first(host: Host) -> None:
    host.systemctl()
    host.call("lease", asked())
    host.call("lease", asked(seconds=300, key="6" * 64))
    assert json.loads((host.state / "lease.json").read_text())["seconds"] == 300


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"seconds": 10}, "lease.seconds is not a number from 45 to 86400"),
        ({"key": "secret"}, "lease.key is not a key of 64 hex digits"),
        ({"addresses": []}, "lease.addresses is empty"),
        ({"peers": {"spark2": ["no address"]}}, "lease.peers.spark2[0]: 'no address'"),
        ({"peers": [1]}, "lease.peers is not an object"),
        ({"port": 22}, "lease.port is not a number"),
    ],
)
def test_a_lease_that_is_none_changes_nothing(
    host: Host, wrong: dict[str, object], says: str
) -> None:
    host.systemctl()
    answer = host.call("lease", asked(**wrong))
    assert not answer["ok"] and says in answer["error"] and "secret" not in answer["error"]
    assert not (host.state / "journal").exists()


def test_a_systemd_that_refuses_leaves_the_change_to_its_run(host: Host) -> None:
    units = host.systemctl()
    (units / "fail-daemon-reload").touch()
    assert host.call("lease", asked())["code"] == "unit_failed"
    (units / "fail-daemon-reload").unlink()
    undone = host.call("undo", {"change": "change-1", "run": "a1"})
    assert undone["status"] == "ROLLED_BACK"


def test_a_keeper_that_cannot_start_is_no_lease(host: Host) -> None:
    """Its port was taken: the lease was said to hold, and nobody would have rolled back."""
    units = host.systemctl()
    (units / "fail-restart").touch()
    answer = host.call("lease", asked())
    assert not answer["ok"] and answer["code"] == "lease_failed"
    assert "keeper does not start" in answer["error"] and "ss -lunp" in answer["remedy"]
    assert lease.load_lease() is None and not (host.state / "units" / lease.LEASE_UNIT).exists()
    assert "nothing was begun" in answer["error"]
    assert host.call("journal")["changes"] == []


def test_only_its_own_keeper_takes_it_away(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that arms anew, while the keeper of the change before goes."""
    host.systemctl()
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    host.call("lease", asked())
    first = lease.load_lease()
    assert first
    host.call("lease", asked(key="6" * 64))
    lease.disarm(first)
    second, unit = lease.load_lease(), Path(lease.unit_folder()) / lease.LEASE_UNIT
    assert second and second != first and unit.exists()
    lease.disarm(second)
    assert lease.load_lease() is None and not unit.exists()
    lease.disarm(second)


# What one keeper does to its host: clocks, the engine's answer, and what it does not say.

LEASE = Lease("change-1", 120.0, b"k", "spark1", True, 29530, ("10.0.0.1",), {})


class Clocks:
    """Both clocks of a host, set by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.boot = self.awake = 1000.0
        patch.setattr(time, "monotonic", lambda: self.awake)
        patch.setattr(time, "clock_gettime", lambda _: self.boot)

    def runs(self, awake: float, asleep: float = 0.0) -> None:
        """Seconds that the host is awake, and that it sleeps."""
        self.awake += awake
        self.boot += awake + asleep


@pytest.mark.parametrize(
    ("spells", "over"),
    [
        ([(119, 0)], False),
        ([(120, 0)], True),
        # the host itself slept: the run has two beats to be heard before it counts
        ([(1, 3600)], False),
        ([(1, 3600), (30, 0)], True),
        ([(60, 59), (1, 0)], True),
    ],
)
def test_silence(
    monkeypatch: pytest.MonkeyPatch, spells: list[tuple[int, int]], over: bool
) -> None:
    clocks = Clocks(monkeypatch)
    silence = lease.Silence(120)
    for spell in spells:
        clocks.runs(*spell)
    assert silence.over() is over
    silence.heard()
    assert not silence.over()


def test_a_clock_that_is_set_says_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """NTP sets it a day on, or back to 1970: no look at the wall clock is in it."""
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    clocks = Clocks(monkeypatch)
    kept = lease.Keeper(LEASE, lease.Silence(120))
    kept.look()
    for unix_s in (time.time() + 86400, 0.0):
        monkeypatch.setattr(time, "time", lambda now=unix_s: now)
        clocks.runs(60)
        kept.look()
        assert kept.view.phase == "renewed"
        host.call("beat", {"change": "change-1", "run": "a1"})
        kept.look()
    clocks.runs(121)
    kept.look()
    assert kept.view.phase == "expired"


def test_a_command_that_still_works_is_waited_for(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease counts from the end of the step, which has its own limit on the host."""
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    clocks = Clocks(monkeypatch)
    kept = lease.Keeper(LEASE, lease.Silence(120))
    monkeypatch.setattr(lease.files, "host_lock", lambda: (True, "pid 1 (tree restore)"))
    kept.look()
    clocks.runs(1800)
    kept.look()
    assert kept.view.phase == "renewed"
    monkeypatch.setattr(lease.files, "host_lock", lambda: (False, None))
    clocks.runs(119)
    kept.look()
    assert kept.view.phase == "renewed"
    clocks.runs(2)
    kept.look()
    assert kept.view.phase == "expired"


def test_a_sign_of_life_before_the_promise_keeps_the_change(host: Host) -> None:
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    way = WayBack(LEASE)
    sign = way.sign(way.change())
    assert host.call("beat", {"change": "change-1", "run": "a1"})["mine"]
    way.promise(sign)
    assert way.phase(way.change(), True) == "expired"
    way.promise(way.sign(way.change()))
    assert way.phase(way.change(), True) == "promised"
    assert not host.call("beat", {"change": "change-1", "run": "a1"})["mine"]


def test_a_kernel_that_is_tried_falls_back_first(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own watch reboots into the pinned one; there the change goes back."""
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    way = WayBack(LEASE)
    change = way.change()
    assert change and way.hindrance(change) == ""
    monkeypatch.setattr(lease.grub_step, "under_trial", lambda: "6.17.0-22-generic")
    assert "kernel 6.17.0-22-generic is tried" in way.hindrance(change)


ENGINE = SimpleNamespace(unit="rigbook-engine.service", endpoint="head", start_budget_s=0.2)
NO_ANSWER = "the former engine does not answer (rigbook-engine.service is "


@pytest.mark.parametrize(
    ("active", "reply", "status", "says"),
    [
        ("active", Reply(True, "tiny answered in 0.3 s"), "ROLLED_BACK",
         "the former engine answers: tiny answered in 0.3 s"),
        ("active", Reply(False, "HTTP 500"), "INCONSISTENT", NO_ANSWER + "active): HTTP 500"),
        ("activating", Reply(True, "x"), "INCONSISTENT",
         NO_ANSWER + "activating): it has not started"),
        ("inactive", Reply(True, "x"), "ROLLED_BACK", "is down, as the change found it"),
    ],
)  # fmt: skip
def test_rolled_back_is_said_after_an_answer(
    host: Host, monkeypatch: pytest.MonkeyPatch, active: str, reply: Any, status: str, says: str
) -> None:
    """What does not answer is no state to go back to: INCONSISTENT, with the reason."""
    monkeypatch.setattr(lease, "MARGIN_S", 0.0)
    monkeypatch.setattr(lease, "POLL_S", 0.01)
    monkeypatch.setattr(lease.config, "load_engine", lambda: ENGINE)
    monkeypatch.setattr(lease, "key_of", lambda _: None)
    monkeypatch.setattr(lease.systemctl, "inspect_unit", lambda _: {"active": active})
    monkeypatch.setattr(lease.answer, "ask_ours", lambda *_: reply)
    monkeypatch.setattr(lease.systemctl, "systemctl", lambda *_: "")
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    way = WayBack(LEASE)
    way.promise(way.sign(way.change()))
    way.stop()
    way.undo()
    back = way.change()
    assert back and (back["status"], way.phase(back, True)) == ("OPEN", "back")
    way.prove()
    change = json.loads((host.state / "journal" / "change-1.json").read_text())
    assert (change["status"], change["lease"]["phase"]) == (status, "settled")
    assert says in change["reason"], change["reason"]
    assert change["reason"].startswith("nobody renewed the lease of 120 s")


@pytest.mark.parametrize(
    ("head", "status", "says"),
    [
        ("ROLLED_BACK", "ROLLED_BACK", "was started; the head saw it answer"),
        ("INCONSISTENT", "INCONSISTENT", "the head has it INCONSISTENT"),
        ("", "ROLLED_BACK", "was started; nothing was changed on the head"),
    ],
)
def test_a_worker_says_what_the_head_saw(
    host: Host, monkeypatch: pytest.MonkeyPatch, head: str, status: str, says: str
) -> None:
    worker = SimpleNamespace(unit="rigbook-engine.service", endpoint=None)
    monkeypatch.setattr(lease.config, "load_engine", lambda: worker)
    monkeypatch.setattr(lease.systemctl, "inspect_unit", lambda _: {"active": "activating"})
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    way = WayBack(LEASE._replace(head=False))
    way.promise(way.sign(way.change()))
    way.stop()
    way.undo()
    way.prove(head)
    change = way.change()
    assert change and (change["status"], way.phase(change, True)) == (status, "settled")
    assert says in change["reason"], change["reason"]


@pytest.mark.parametrize(
    ("peer", "active", "killed", "calls"),
    [
        ("spark1", "active", False, ["stop", "start"]),
        # the kill came after the stop: what it finds then is an engine that is down
        ("spark1", "active", True, ["stop", "start"]),
        ("spark1", "inactive", False, []),
        ("", "active", False, []),
    ],
)
def test_an_engine_that_the_change_did_not_reach_restarts_with_its_peer(
    host: Host, monkeypatch: pytest.MonkeyPatch,
    peer: str, active: str, killed: bool, calls: list[str],
) -> None:  # fmt: skip
    """The laptop slept after the head's stop: the worker's old rank would join no new head."""
    worker = SimpleNamespace(unit="rigbook-engine.service", endpoint=None)
    state, called = {"active": active}, []

    def systemctl(verb: str, *words: str) -> str:
        called.append(verb)
        state["active"] = "inactive" if verb == "stop" else "activating"
        if killed and called == ["stop"]:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(lease.config, "load_engine", lambda: worker)
    monkeypatch.setattr(lease.systemctl, "inspect_unit", lambda _: dict(state))
    monkeypatch.setattr(lease.systemctl, "systemctl", systemctl)
    monkeypatch.setattr(lease.systemctl, "forget_failures", lambda _: None)
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    way = WayBack(LEASE._replace(head=False))
    way.promise(way.sign(way.change()))
    if killed:
        with pytest.raises(KeyboardInterrupt):
            way.stop(peer)
        assert way.phase(way.change(), True) == "promised"
    way.stop(peer)
    way.undo()
    change = way.change()
    assert called == calls and change and way.phase(change, True) == "back"
    assert LeaseNote.model_validate(change["lease"]).again is (calls != [])


def test_a_part_that_waits_for_a_boot_gets_one(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former driver's packages are back, and its module comes with one boot."""
    ran: list[str] = []

    def held(change: Any, *_: object) -> None:
        change["steps"][0]["boot"] = lease.proc.boot_id()
        raise NodeError("take back: the former one comes with the next boot", "undo_incomplete")

    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    way = WayBack(LEASE)
    way.promise(way.sign(way.change()))
    way.stop()
    monkeypatch.setattr(lease.transaction, "take_back", held)
    monkeypatch.setattr(lease.systemctl, "systemctl", lambda *words: ran.append(words[-1]))
    way.undo()
    found = way.change()
    assert ran == ["reboot"] and found
    assert (found["status"], way.phase(found, True)) == ("OPEN", "stopped")


def test_what_cannot_be_put_back_is_said_at_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No success that was not seen (deploy-rs#214), and no half of one (#68)."""

    def fails(*_: object) -> None:
        raise NodeError("take back: file.conf: No space left on device", "undo_incomplete")

    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    way = WayBack(LEASE)
    way.promise(way.sign(way.change()))
    way.stop()
    monkeypatch.setattr(lease.transaction, "take_back", fails)
    with pytest.raises(NodeError, match="No space left"):
        way.undo()
    change = way.change()
    assert change and (change["status"], way.phase(change, True)) == ("INCONSISTENT", "back")
    way.prove()
    change = way.change()
    assert change and (change["status"], way.phase(change, True)) == ("INCONSISTENT", "settled")
    assert "No space left" in change["reason"]
