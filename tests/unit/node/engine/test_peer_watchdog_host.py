"""pair on a host with a real connection: the restart, and when it would be wrong."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from node.engine import config, peer_watchdog
from node.files import host_lock
from node.files.host_lock import Lock
from tests.unit.node.support.enginefile import UNIT, engine_file
from tests.unit.node.support.host import Host, change, file_step

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

    monkeypatch.setattr(peer_watchdog, "hindrance", begin)
    peer_watchdog.check(config.load(), seen.append, seen.append)
    assert seen == []
    monkeypatch.setattr(peer_watchdog, "hindrance", lambda *_: None)
    with Lock("apply"):
        peer_watchdog.check(config.load(), seen.append, seen.append)
    assert seen == []
    joined.host.call("close", {"change": "change-1", "status": "COMMITTED"})
    locked = []

    def restart(_: str) -> None:
        locked.append(host_lock.held()[0])

    peer_watchdog.check(config.load(), restart, seen.append)
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
