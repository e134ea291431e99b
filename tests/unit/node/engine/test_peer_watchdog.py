"""pair: what counts as joined, lost and wedged."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from node.core import files
from node.core.files import Lock
from node.engine import config, peer
from node.engine.peer import Joined, Seen, Verdict
from tests.unit.node.support.host import UNIT, Host, change, engine, engine_file, file_step

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
        {"started": 1000.0}, ((), int((BUDGET + peer.MARGIN_S) / STEP_S), None),
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
        self.state = peer.fresh_peer("")
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
            verdict = peer.judge_peer(self.state, seen, self.now, BUDGET, self.head)
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
    state = peer.fresh_peer("x")
    for n in range(6):
        held = {"a": {"a:1"}, "b": {"b:1"} if n < 2 else set()}
        seen = Seen("active", "running", "x", 20.0, Joined(held, set()))
        verdict = peer.judge_peer(state, seen, n * STEP_S, BUDGET, True)
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
    rows = peer.connections(table)
    assert peer.by_peer(head, rows) == {PEER: {f"{PEER}:38324"}}
    dead = peer.by_peer(head, peer.connections(table, "08"))
    assert dead == {PEER: {f"{PEER}:38326"}}
    turned = [(*row[2:], *row[:2]) for row in rows]
    worker = engine(fabric={**fabric, "address": PEER}, master=master, peers=["10.99.0.1"],
                    role="worker", rank=1, endpoint=None)  # fmt: skip
    assert peer.by_peer(worker, turned) == {"10.99.0.1": {f"{PEER}:38324"}}


# pair on a host with a real connection: the restart, and when it would be wrong.

SYSTEMCTL = """\
#!/bin/sh
# rigbook stand-in for systemctl: the unit's properties are a file, restarts are logged
here=$(dirname "$0")
case "$*" in
*show*) cat "$here/properties";;
*) echo "$*" >> "$here/log";;
esac
"""


class Pair:
    """A host whose engine is joined by a real connection over the loopback."""

    def __init__(self, host: Host) -> None:
        self.host = host
        host.double("systemctl", SYSTEMCTL)
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        engine_file(host, master={"address": "127.0.0.1", "port": port})
        self.client = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
        self.accepted = self.listener.accept()[0]
        self.unit()

    def unit(self, active: str = "active", sub: str = "running", since_s: float = 20) -> None:
        started = int((time.monotonic() - since_s) * 1e6)
        (self.host.bin / "properties").write_text(
            f"ActiveState={active}\nSubState={sub}\nInvocationID=x\nExecMainPID=7\n"
            f"ExecMainStartTimestampMonotonic={started}\n"
        )

    def look(self) -> str:
        done = self.host.run(self.host.argv("pair"))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def lose(self) -> None:
        """The peer's rank ends, and two looks, half a minute apart, have seen it."""
        for end in (self.client, self.accepted):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            end.close()
        self.look()
        self.look()
        path = self.host.state / "run" / "pair.json"
        state: dict[str, Any] = json.loads(path.read_text())
        assert state["misses"] == 2, state
        path.write_text(json.dumps({**state, "since": state["since"] - 30}))

    def restarts(self) -> list[str]:
        log = self.host.bin / "log"
        return log.read_text().splitlines() if log.exists() else []


FORGET = [f"--no-ask-password reset-failed {UNIT}"]
# it follows its peer: no crash of its own is counted
COUNTED = [f"--no-ask-password restart --no-block {UNIT}"]
RESTART = [*FORGET, *COUNTED]


@pytest.fixture
def joined(host: Host) -> Iterator[Pair]:
    made = Pair(host)
    with closing(made.listener), closing(made.client), closing(made.accepted):
        assert made.look() == "" and made.look() == ""
        yield made


def test_the_unit_is_restarted_with_one_line(joined: Pair) -> None:
    joined.lose()
    said = joined.look()
    assert said.startswith(f"restarting {UNIT}: the connection with 127.0.0.2 is gone for 3")
    assert said.count("\n") == 1
    assert joined.restarts() == RESTART
    joined.look()
    assert joined.restarts() == RESTART


def test_three_restarts_in_six_hours_follow_a_peer_and_more_count_as_crashes(joined: Pair) -> None:
    path = joined.host.state / "run" / "pair.json"
    joined.lose()
    state = json.loads(path.read_text())
    now = time.monotonic()
    for followed, said in (([now - 9, now - 8], RESTART), ([now - 9, now - 8, now - 7], COUNTED),
                           ([now - 6 * 3600 - 1, now - 8, now - 7], RESTART)):  # fmt: skip
        path.write_text(json.dumps({**state, "followed": followed}))
        (joined.host.bin / "log").unlink(missing_ok=True)
        joined.look()
        assert joined.restarts() == said, followed
    kept = json.loads(path.read_text())["followed"]
    assert len(kept) == 3 and kept[-1] >= now


def test_an_operator_at_work_is_not_disturbed(joined: Pair) -> None:
    """Told once; the restart comes when the change is closed."""
    host = joined.host
    host.call("apply", {"change": change(), "steps": [file_step(host.file())]})
    joined.lose()
    assert "not restarted: change change-1 is open (tester@here)" in joined.look()
    assert joined.look() == "" and joined.restarts() == []
    host.call("close", {"change": "change-1", "status": "COMMITTED"})
    joined.look()
    assert joined.restarts() == RESTART


def test_a_change_of_the_rig_without_a_step_here_is_an_operator_at_work(joined: Pair) -> None:
    """Fault 56: the head's stop ends our connection; the change was opened here before it."""
    answer = joined.host.call("apply", {"change": change(), "steps": []})
    assert (answer["change"], answer["status"], answer["changed"]) == ("change-1", "OPEN", False)
    joined.lose()
    assert "not restarted: change change-1 is open (tester@here)" in joined.look()
    assert joined.restarts() == []
    assert joined.host.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"
    joined.look()
    assert joined.restarts() == RESTART


def test_an_operator_who_begins_between_the_look_and_the_restart_is_not_disturbed(
    joined: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restart is asked for under the lock, where no change can be opened."""
    for name, value in joined.host.environ().items():
        monkeypatch.setenv(name, value)
    joined.lose()
    seen: list[str] = []

    def begin(*_: object) -> str | None:
        joined.host.call("apply", {"change": change(), "steps": []})
        return None

    monkeypatch.setattr(peer, "hindrance", begin)
    peer.check_peer(config.load_engine(), seen.append, seen.append)
    assert seen == []
    monkeypatch.setattr(peer, "hindrance", lambda *_: None)
    with Lock("apply"):
        peer.check_peer(config.load_engine(), seen.append, seen.append)
    assert seen == []
    joined.host.call("close", {"change": "change-1", "status": "COMMITTED"})
    locked = []

    def restart(_: str) -> None:
        locked.append(files.host_lock()[0])

    peer.check_peer(config.load_engine(), restart, seen.append)
    assert locked == [True] and seen == [UNIT]


def test_a_held_lock_and_a_damaged_journal_are_reasons_to_wait(joined: Pair) -> None:
    joined.lose()
    (joined.host.state / "journal").mkdir(exist_ok=True, parents=True)
    broken = joined.host.state / "journal" / "change-0.json"
    broken.write_text("{")
    assert "the journal is damaged" in joined.look()
    broken.unlink()
    with Lock("test"):
        assert "the lock is held by pid" in joined.look()
    assert joined.restarts() == []
    joined.look()
    assert joined.restarts() == RESTART


def test_a_peers_host_that_is_away_is_waited_for(joined: Pair) -> None:
    """A restart now would only burn a start: prelaunch would wait for that host."""
    joined.lose()
    config = joined.host.root / "engine.json"
    text = config.read_text()
    # TEST-NET-1: no host of it is reachable from a loopback address
    config.write_text(text.replace('"127.0.0.2"', '"192.0.2.1"'))
    state = joined.host.state / "run" / "pair.json"
    state.write_text(state.read_text().replace("127.0.0.2", "192.0.2.1"))
    assert "not restarted: no answer from 192.0.2.1 on the fabric" in joined.look()
    assert joined.restarts() == []


@pytest.mark.parametrize(("active", "sub"), [
    ("inactive", "dead"), ("deactivating", "stop"), ("activating", "start-pre"),
    ("activating", "auto-restart"), ("failed", "failed"), ("activating", "start-post"),
])  # fmt: skip
def test_a_unit_that_does_not_run_is_left_alone(joined: Pair, active: str, sub: str) -> None:
    """One whose head loads its model (start-post) is watched too."""
    joined.lose()
    joined.unit(active, sub)
    said = [joined.look(), joined.look()]
    assert joined.restarts() == (RESTART if sub == "start-post" else [])
    assert said[1] == "" and (f"{UNIT} has failed" in said[0]) == (active == "failed")


def test_a_rank_that_never_joined_is_restarted(host: Host) -> None:
    made = Pair(host)
    with closing(made.listener), closing(made.client), closing(made.accepted):
        made.client.close()
        made.accepted.close()
        # a look takes its own time, more of it on a machine that has much else to do
        made.unit(since_s=30)
        assert made.look() == ""
        made.unit(since_s=91)
        said = re.search(r"127.0.0.2 never joined in (\d+) s \(allowed: 90 s\)", made.look())
        assert said and int(said[1]) >= 91
    assert made.restarts() == COUNTED


def test_a_damaged_state_is_started_anew(joined: Pair) -> None:
    (joined.host.state / "run" / "pair.json").write_text('{"misses": 99}')
    assert "is damaged: starting anew" in joined.look() and joined.restarts() == []


def test_a_start_that_lasted_is_not_counted_any_more(joined: Pair) -> None:
    """Once, after a quarter of an hour as a whole pair: deaths hours apart are no crash loop."""
    joined.unit(since_s=800)
    joined.look()
    assert joined.restarts() == []
    joined.unit(since_s=901)
    joined.look()
    joined.look()
    assert joined.restarts() == FORGET


def test_a_pair_that_misses_a_peer_is_no_good_start(joined: Pair) -> None:
    joined.unit(since_s=2000)
    joined.lose()
    assert joined.restarts() == []
