"""What a host does next: a table, and every order of events of two and three hosts by chance."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from node.lease import agreement
from node.lease.agreement import PHASES, View, next_step

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
    real = agreement.next_step

    def hasty(me: View, peers: agreement.Peers) -> tuple[str, str]:
        action, why = real(me, peers)
        return ("stop", "") if me.phase == "promised" and action == "wait" else (action, why)

    monkeypatch.setitem(globals(), "next_step", hasty)
    with pytest.raises(AssertionError):
        test_no_order_of_events_leaves_half(2)
