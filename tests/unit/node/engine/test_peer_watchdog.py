"""pair: what counts as joined, lost and wedged."""

from __future__ import annotations

from typing import Any

import pytest

from node.engine import peer_connections, peer_watchdog
from node.engine.peer_connections import Joined
from node.engine.peer_watchdog import Seen, Verdict
from tests.unit.node.support.enginefile import engine

PEER = "10.99.0.2"
OLD, NEW, THIRD = (f"{PEER}:{port}" for port in (38324, 40042, 41000))
BUDGET = 300.0
STEP_S = 15.0


LOADS, RUNS = ("activating", "start-post"), ("active", "running")
# Steps of a case: looks at these connections (how many looks, and what the last one says), or
# a change of what is looked at: the unit's state, a dead end, the clock, the start.
Step = tuple[tuple[str, ...], int, str | None] | dict[str, Any]
JOINED: Step = ((OLD,), 2, None)
GONE = "is gone"
CASES: dict[str, list[Step]] = {
    "a pair that stays joined is left alone": [((), 4, None), ((OLD,), 50, None)],
    "a lost peer is seen at the third look": [
        JOINED, ((), 1, None), ((), 1, None),
        ((), 1, f"the connection with {PEER} is gone for 30 s"),
    ],
    "a short gap is forgiven": [JOINED, ((), 2, None), ((OLD,), 1, None), ((), 2, None)],
    "a gap that was forgiven does not count in the next one": [
        JOINED, ((), 2, None), ((OLD,), 1, None), ((), 1, None), {"later": 120}, ((), 1, None),
    ],
    "a gap that was forgiven does not lengthen the next one": [
        JOINED, ((), 2, None), ((OLD,), 1, None), ((), 1, None),
        *[{"later": 1 - STEP_S}, ((), 1, None)] * 2,
    ],
    # a host that was suspended runs its late timers in a burst
    "looks at once are one look": [
        JOINED, *[{"later": 1 - STEP_S}, ((), 1, None)] * 5, {"later": 15}, ((), 1, GONE),
    ],
    # a busy host runs its timers late
    "two looks are too few however far apart": [
        JOINED, ((), 1, None), {"later": 120}, ((), 1, None), ((), 1, GONE),
    ],
    # its new connection has another port: the head still waits for the old one
    "a peer that died and came back is not the one that was joined": [
        JOINED, ((NEW,), 2, None), ((NEW,), 1, GONE),
    ],
    # a power cut leaves the head's end of the old connection ESTABLISHED for hours
    "a peer that was cut off and joins anew is seen": [
        JOINED, ((OLD,), 1, None), ((OLD, NEW), 2, None), ((OLD, NEW), 1, "has joined anew"),
    ],
    # until the head has answered, its engine may open further connections
    "connections of the start are no newcomers": [
        {"active": LOADS}, JOINED, ((OLD, NEW), 5, None), {"active": RUNS},
        ((OLD, NEW), 10, None), ((OLD, NEW, THIRD), 2, None), ((OLD, NEW), 10, None),
    ],
    "while it starts a connection may be changed for another": [
        {"active": LOADS}, ((OLD,), 1, None), ((NEW,), 2, None), {"active": RUNS},
        ((NEW,), 5, None), ((), 2, None), ((), 1, GONE),
    ],
    # between two looks: a worker keeps the dead end of a connection that no look has found
    "a worker's peer that dies right after it joined is seen": [
        {"head": False}, ((), 3, None), {"half_open": {PEER}}, ((), 2, None), ((), 1, GONE),
    ],
    "a head's peer that dies right after it joined is seen": [
        ((OLD,), 1, None), ((), 2, None), ((), 1, GONE),
    ],
    "a dead end beside a live connection is nothing": [{"half_open": {PEER}}, ((OLD,), 10, None)],
    "a peer that never joins is a stale rendezvous": [
        {"started": 1000.0}, ((), int((BUDGET + peer_watchdog.MARGIN_S) / STEP_S), None),
        ((), 1, "never joined in 375 s (allowed: 360 s)"),
    ],
    "a new start forgets the old one": [
        JOINED, ((), 2, None), {"invocation": "second"}, ((), 5, None), ((NEW,), 10, None),
    ],
}  # fmt: skip
BOTH_ENDS = list(CASES)[:2]


class Looks:
    """A run of looks, 15 s apart, at one start of the unit."""

    def __init__(self, head: bool = True) -> None:
        self.head, self.active, self.invocation = head, RUNS, "first"
        self.state = peer_watchdog.fresh("")
        self.now, self.started = 1000.0, 0.0
        self.half_open: set[str] = set()

    def change(self, later: float = 0.0, **values: Any) -> None:
        """Sets what is looked at, and moves the clock."""
        self.now += later
        vars(self).update(values)

    def __call__(self, held: tuple[str, ...], times: int) -> str | None:
        """The reason to restart after `times` looks that see these connections, or None."""
        verdict = Verdict(self.state, None)
        for _ in range(times):
            self.now += STEP_S
            since = self.now - self.started if self.started else 20.0
            seen = Seen(*self.active, self.invocation, since,
                        Joined({PEER: set(held)}, self.half_open))  # fmt: skip
            verdict = peer_watchdog.judge(self.state, seen, self.now, BUDGET, self.head)
            self.state = verdict.state
        return verdict.restart


@pytest.mark.parametrize(("case", "head"), [
    *((case, True) for case in CASES), *((case, False) for case in BOTH_ENDS)
])  # fmt: skip
def test_what_the_looks_of_a_start_say(case: str, head: bool) -> None:
    look = Looks(head)
    for number, step in enumerate(CASES[case]):
        if isinstance(step, dict):
            look.change(**step)
            continue
        held, times, said = step
        found = look(held, times)
        assert (found is None) if said is None else said in str(found), (number, found)


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
