"""What the watch tells of a host that acted, or went down, with nobody there: once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.core import proc
from node.core.errors import CannotRead
from node.health import counters
from node.watch import away, watch
from node.watch.config import Watch
from tests.unit.node.support.host import Host, apply_request, file_step, unsigned
from tests.unit.node.support.servers import completion, serving
from tests.unit.node.support.watched import Rig

FORMER = "11111111-2222-3333-4444-555555555555"
ENDED = {"boot_id": FORMER.replace("-", ""), "last_unix_s": 1_790_000_000, "asked_for": False}


@pytest.fixture
def rig(host: Host) -> Iterator[Rig]:
    with (
        serving(lambda body: (200, completion())) as endpoint,
        serving(lambda body: (200, {})) as hook,
    ):
        yield Rig(host, endpoint, hook)


def taken(host: Host, deploy: str, status: str) -> None:
    """A change of this host, as its keeper or a run left it."""
    host.call("apply", apply_request(file_step(host.file()), run="a1"))
    path = host.state / "journal" / "change-1.json"
    change = unsigned(path)
    closed = None if status == "OPEN" else time.time()
    change.update(status=status, reason="nobody renewed the lease of 120 s", closed_unix_s=closed,
                  taken={"operator": "keeper@spark1", "deploy": deploy, "unix_s": 1.0})  # fmt: skip
    path.write_text(json.dumps(change))


@pytest.mark.parametrize(
    ("deploy", "status", "told"),
    [
        ("lease", "ROLLED_BACK", ["lease"]),
        ("lease", "INCONSISTENT", ["lease"]),
        ("lease", "OPEN", []),
        ("serve", "ROLLED_BACK", []),
    ],
)
def test_the_end_of_a_lease_is_told_once(
    rig: Rig, deploy: str, status: str, told: list[str]
) -> None:
    rig.look()
    taken(rig.host, deploy, status)
    rig.look()
    rig.look()
    assert rig.told() == told
    assert not told or f"is {status}: nobody renewed" in rig.hook.got[0]["text"]


def test_what_ended_before_the_watch_is_no_news(rig: Rig) -> None:
    taken(rig.host, "lease", "ROLLED_BACK")
    rig.look()
    assert rig.told() == []


class Endpoint:
    """Stands for what is watched; only its model is asked for."""

    model = "tiny"


WATCH = Watch("lab", "lab1", Endpoint(), 3, 3600.0, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kept", "ended", "deploy", "told"),
    [
        (FORMER, ENDED, "serve", ["rebooted"]),
        (FORMER, {**ENDED, "asked_for": True}, "serve", []),
        (FORMER, ENDED, "reboot", []),
        ("", ENDED, "serve", []),
        ("this one", ENDED, "serve", []),
    ],
)
def test_a_reboot_that_nobody_asked_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str, ended: dict[str, Any], deploy: str,
    told: list[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    boot = proc.boot_id() if kept == "this one" else kept
    monkeypatch.setattr(away.state_file, "load", lambda *_: {**counters.EMPTY, "boot": boot})
    change = {"deploy": deploy, "boot_id": FORMER, "closed_unix_s": 1.0}
    monkeypatch.setattr(away.journal, "read_all", lambda: ([change], []))
    monkeypatch.setattr(away.boots, "read", lambda: [ended])
    rows = away.look(WATCH, time.time())
    assert [row["status"] for row in rows] == told
    assert not told or "2026-09-21" in rows[0]["text"]


def test_a_journal_that_cannot_be_read_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise CannotRead("journalctl: not found")

    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    monkeypatch.setattr(away.state_file, "load", lambda *_: {**counters.EMPTY, "boot": FORMER})
    monkeypatch.setattr(away.boots, "read", fails)
    assert away.look(WATCH, 0.0) == []
    assert "is not known: journalctl: not found" in capsys.readouterr().out


def test_a_host_that_never_stops_is_told_of_ten_times_an_hour() -> None:
    sent, row = 0, {"status": "hardware"}
    noticed: list[float] = []
    for minute in range(60):
        told, noticed = watch.limited([row], noticed, 60.0 * minute)
        sent += len(told)
    assert sent == watch.MOST_AN_HOUR
    assert watch.limited([row, row], noticed, 3601.0)[0] == [row]
