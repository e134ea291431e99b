"""pair: what counts as joined, lost and wedged."""

from __future__ import annotations

import pytest

from node.engine import peer_connections, peer_watchdog
from node.engine.peer_connections import Joined
from node.engine.peer_watchdog import Seen, Verdict
from tests.unit.node.support.enginefile import engine

PEER = "10.99.0.2"
OLD, NEW, THIRD = (f"{PEER}:{port}" for port in (38324, 40042, 41000))
BUDGET = 300.0
STEP_S = 15.0


class Looks:
    """A run of looks, 15 s apart, at one start of the unit."""

    def __init__(self, head: bool = True) -> None:
        self.head = head
        self.state = peer_watchdog.fresh("")
        self.now = 1000.0
        self.invocation = "first"
        self.started = 0.0
        self.active = ("active", "running")
        self.half_open = False

    def __call__(self, *held: str, times: int = 1) -> str | None:
        """The reason to restart after `times` looks that see these connections, or None."""
        verdict = Verdict(self.state, None)
        for _ in range(times):
            self.now += STEP_S
            since = self.now - self.started if self.started else 20.0
            joined = Joined({PEER: set(held)}, {PEER} if self.half_open else set())
            seen = Seen(*self.active, self.invocation, since, joined)
            verdict = peer_watchdog.judge(self.state, seen, self.now, BUDGET, self.head)
            self.state = verdict.state
        return verdict.restart


@pytest.mark.parametrize("head", [True, False])
def test_a_pair_that_stays_joined_is_left_alone(head: bool) -> None:
    look = Looks(head)
    assert look(times=4) is None
    assert look(OLD, times=50) is None


@pytest.mark.parametrize("head", [True, False])
def test_a_lost_peer_is_seen_at_the_third_look(head: bool) -> None:
    look = Looks(head)
    look(OLD, times=2)
    assert look() is None and look() is None
    assert look() == f"the connection with {PEER} is gone for 30 s"


def test_a_short_gap_is_forgiven() -> None:
    look = Looks()
    look(OLD, times=2)
    assert look(times=2) is None
    assert look(OLD) is None
    assert look(times=2) is None


def test_a_gap_that_was_forgiven_does_not_count_in_the_next_one() -> None:
    look = Looks()
    look(OLD, times=2)
    look(times=2)
    assert look(OLD) is None
    look()
    look.now += 120
    assert look() is None


def test_three_looks_at_once_are_one_look() -> None:
    """A host that was suspended runs its late timers in a burst."""
    look = Looks()
    look(OLD, times=2)
    for _ in range(5):
        look.now -= STEP_S - 1
        assert look() is None
    look.now += 15
    assert "is gone" in str(look())


def test_two_looks_are_too_few_however_far_apart() -> None:
    """A busy host runs its timers late."""
    look = Looks()
    look(OLD, times=2)
    look()
    look.now += 120
    assert look() is None
    assert look() is not None


def test_a_peer_that_died_and_came_back_is_not_the_one_that_was_joined() -> None:
    """Its new connection has another port: the head still waits for the old one."""
    look = Looks()
    look(OLD, times=2)
    assert look(NEW, times=2) is None
    assert "is gone" in str(look(NEW))


def test_a_peer_that_was_cut_off_and_joins_anew_is_seen() -> None:
    """A power cut leaves the head's end of the old connection ESTABLISHED for hours."""
    look = Looks()
    look(OLD, times=3)
    assert look(OLD, NEW, times=2) is None
    assert "has joined anew" in str(look(OLD, NEW))


def test_connections_of_the_start_are_no_newcomers() -> None:
    """Until the head has answered, its engine may open further connections."""
    look = Looks()
    look.active = ("activating", "start-post")
    look(OLD, times=2)
    look(OLD, NEW, times=5)
    look.active = ("active", "running")
    assert look(OLD, NEW, times=10) is None
    assert look(OLD, NEW, THIRD, times=2) is None
    assert look(OLD, NEW, times=10) is None


def test_while_it_starts_a_connection_may_be_changed_for_another() -> None:
    look = Looks()
    look.active = ("activating", "start-post")
    look(OLD)
    look(NEW, times=2)
    look.active = ("active", "running")
    assert look(NEW, times=5) is None
    assert look(times=2) is None
    assert "is gone" in str(look())


def test_a_peer_that_dies_right_after_it_joined_is_seen() -> None:
    """Between two looks: a worker keeps the dead end of a connection that no look has found."""
    look = Looks(head=False)
    assert look(times=3) is None
    look.half_open = True
    assert look(times=2) is None
    assert "is gone" in str(look())
    look = Looks()
    look(OLD)
    assert look(times=2) is None
    assert "is gone" in str(look())


def test_a_dead_end_beside_a_live_connection_is_nothing() -> None:
    look = Looks()
    look.half_open = True
    assert look(OLD, times=10) is None


def test_a_peer_that_never_joins_is_a_stale_rendezvous() -> None:
    look = Looks()
    look.started = look.now
    assert look(times=int((BUDGET + peer_watchdog.MARGIN_S) / STEP_S)) is None
    assert "never joined in 375 s (allowed: 360 s)" in str(look())


def test_a_new_start_forgets_the_old_one() -> None:
    look = Looks()
    look(OLD, times=2)
    look(times=2)
    look.invocation = "second"
    assert look(times=5) is None
    assert look(NEW, times=10) is None


def test_of_several_peers_one_is_enough() -> None:
    state = peer_watchdog.fresh("x")
    for n in range(6):
        held = {"a": {"a:1"}, "b": {"b:1"} if n < 2 else set()}
        seen = Seen("active", "running", "x", 20.0, Joined(held, set()))
        verdict = peer_watchdog.judge(state, seen, n * STEP_S, BUDGET, True)
        state = verdict.state
    assert "the connection with b is gone" in str(verdict.restart)


# /proc/net/tcp, the columns after the inode cut off
TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100630A:733D 0200630A:95B4 01 00000000:00000000 00:0 0 0 0 1
   1: 0100630A:733D 00000000:0000 0A 00000000:00000000 00:0 0 0 0 2
   2: 0100630A:733D 0300630A:95B5 01 00000000:00000000 00:0 0 0 0 3
   3: 0100630A:733D 0200630A:95B6 08 00000000:00000000 00:0 0 0 0 0 3 0 20 4 30
   4: 0100630A:0016 0200630A:95B7 01 00000000:00000000 00:0 0 0 0 5
"""
TABLE_6 = TABLE.replace("0100630A", "0000000000000000FFFF00000100630A").replace(
    "0200630A", "0000000000000000FFFF00000200630A"
)


@pytest.mark.parametrize("table", [TABLE, TABLE_6])
def test_the_kernels_table_is_read(table: str) -> None:
    """One row counts: not the listener, a stranger, a dead end, or another port (ssh)."""
    fabric = {"device": "bond0", "address": "10.99.0.1", "mtu": 9000, "wait_s": 1}
    master = {"address": "10.99.0.1", "port": 29501}
    head = engine(fabric=fabric, master=master, peers=[PEER])
    rows = peer_connections.connections(table)
    assert peer_connections.by_peer(head, rows) == {PEER: {f"{PEER}:38324"}}
    dead = peer_connections.by_peer(head, peer_connections.connections(table, "08"))
    assert dead == {PEER: {f"{PEER}:38326"}}
    turned = [(*row[2:], *row[:2]) for row in rows]
    worker = engine(fabric={**fabric, "address": PEER}, master=master, peers=["10.99.0.1"],
                    role="worker", rank=1, endpoint=None)  # fmt: skip
    assert peer_connections.by_peer(worker, turned) == {"10.99.0.1": {f"{PEER}:38324"}}
