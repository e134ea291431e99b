"""What one keeper does to its host: clocks, the engine's answer, and what it does not say."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from node.core.errors import NodeError
from node.lease import keeper, way_back
from node.lease.settings import Lease
from node.lease.way_back import WayBack
from node.rules.completion import Reply
from schema.observed.files import LeaseNote
from tests.unit.node.support.host import Host, apply_request, file_step

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
    silence = keeper.Silence(120)
    for spell in spells:
        clocks.runs(*spell)
    assert silence.over() is over
    silence.heard()
    assert not silence.over()


def test_a_clock_that_is_set_says_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """NTP sets it a day on, or back to 1970: no look at the wall clock is in it."""
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    clocks = Clocks(monkeypatch)
    kept = keeper.Keeper(LEASE, keeper.Silence(120))
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
    kept = keeper.Keeper(LEASE, keeper.Silence(120))
    monkeypatch.setattr(keeper.host_lock, "held", lambda: (True, "pid 1 (tree restore)"))
    kept.look()
    clocks.runs(1800)
    kept.look()
    assert kept.view.phase == "renewed"
    monkeypatch.setattr(keeper.host_lock, "held", lambda: (False, None))
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
    monkeypatch.setattr(way_back.candidate, "under_trial", lambda: "6.17.0-22-generic")
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
    monkeypatch.setattr(way_back, "MARGIN_S", 0.0)
    monkeypatch.setattr(way_back, "POLL_S", 0.01)
    monkeypatch.setattr(way_back.config, "load", lambda: ENGINE)
    monkeypatch.setattr(way_back, "key_of", lambda _: None)
    monkeypatch.setattr(way_back.systemctl, "inspect_unit", lambda _: {"active": active})
    monkeypatch.setattr(way_back.await_answer, "ask_ours", lambda *_: reply)
    monkeypatch.setattr(way_back.systemctl, "systemctl", lambda *_: "")
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
    monkeypatch.setattr(way_back.config, "load", lambda: worker)
    monkeypatch.setattr(way_back.systemctl, "inspect_unit", lambda _: {"active": "activating"})
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

    monkeypatch.setattr(way_back.config, "load", lambda: worker)
    monkeypatch.setattr(way_back.systemctl, "inspect_unit", lambda _: dict(state))
    monkeypatch.setattr(way_back.systemctl, "systemctl", systemctl)
    monkeypatch.setattr(way_back.systemctl, "forget_failures", lambda _: None)
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
        change["steps"][0]["boot"] = way_back.proc.boot_id()
        raise NodeError("take back: the former one comes with the next boot", "undo_incomplete")

    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    way = WayBack(LEASE)
    way.promise(way.sign(way.change()))
    way.stop()
    monkeypatch.setattr(way_back.undo, "take_back", held)
    monkeypatch.setattr(way_back.systemctl, "systemctl", lambda *words: ran.append(words[-1]))
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
    monkeypatch.setattr(way_back.undo, "take_back", fails)
    with pytest.raises(NodeError, match="No space left"):
        way.undo()
    change = way.change()
    assert change and (change["status"], way.phase(change, True)) == ("INCONSISTENT", "back")
    way.prove()
    change = way.change()
    assert change and (change["status"], way.phase(change, True)) == ("INCONSISTENT", "settled")
    assert "No space left" in change["reason"]
