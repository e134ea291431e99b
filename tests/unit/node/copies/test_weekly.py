"""What rigbook-verify.timer starts: backups and copies of others are read, and it is noted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from node.backup import listing
from node.backup.store import Held
from node.copies import weekly
from tests.unit.node.copies.test_peer import kept, peer, there
from tests.unit.node.support.host import Host
from tests.unit.node.support.trees import Engine

__all__ = ["peer"]


def check(host: Host) -> tuple[int, str]:
    """As systemd runs it."""
    done = host.run(host.argv("check backups"))
    return done.returncode, done.stdout


def note(host: Host) -> dict[str, object]:
    """What it noted."""
    found: dict[str, object] = json.loads((host.state / "weekly.json").read_text())
    return found


def flip(path: Path) -> None:
    """One bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def test_all_of_them_are_read(engine: Engine, peer: Host) -> None:
    first = engine.verified()
    there(engine, peer, first).go()
    (engine.package / "__init__.py").write_text("upgraded")
    second = engine.backup()
    assert check(engine.host)[0] == 0 and note(engine.host)["read"] == 2
    rows = {row["id"]: row["verified_unix_s"] for row in engine.ask("list")["backups"]}
    assert rows[first] > time.time() - 60 and rows[second] > time.time() - 60
    assert check(peer) == (0, check(peer)[1]) and note(peer)["read"] == 1


def test_what_is_damaged_is_named_and_the_others_are_read(engine: Engine, peer: Host) -> None:
    first = engine.verified()
    there(engine, peer, first).go()
    flip(engine.backups / first / "payload.tar.zst")
    flip(kept(peer, first) / "payload.tar.zst")
    (engine.package / "__init__.py").write_text("upgraded" * 100000)
    os.utime(engine.package / "__init__.py", (1, 1))
    for host, said in ((engine.host, first), (peer, "the copy for lab1: ")):
        status, out = check(host)
        assert status == 1 and said in out and "Traceback" not in out
        assert said in str(note(host)["problem"])
    assert engine.ask("list")["backups"][0]["problem"]


def test_nothing_to_read_is_whole(host: Host) -> None:
    assert check(host)[0] == 0 and note(host)["read"] == 0


def test_it_waits_for_who_works_on_them(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.verified()
    held = Held()
    held.__enter__()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        if seconds == weekly.WAIT_S:
            waits.append(seconds)
            held.__exit__(None, None, None)

    monkeypatch.setattr(weekly.time, "sleep", sleep)
    weekly.run()
    assert waits == [weekly.WAIT_S] and note(engine.host)["problem"] == ""


def test_the_list_tells_it_where_the_timer_is(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.ask("list")["weekly"] is None
    timer = tmp_path / "rigbook-verify.timer"
    monkeypatch.setattr(listing, "WEEKLY_TIMER", str(timer))
    timer.write_text("")
    found = listing.weekly()
    assert found and found["unix_s"] is None and found["since_unix_s"] == timer.stat().st_mtime
    listing.note_weekly({"unix_s": 5.0, "read": 2, "problem": "x"})
    found = listing.weekly()
    assert found and (found["unix_s"], found["read"], found["problem"]) == (5.0, 2, "x")
