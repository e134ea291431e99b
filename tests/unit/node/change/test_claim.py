"""Whose an open change is: a run takes up a dead one's change, and what that one writes is refused.

Runs are real processes of the program, with real locks and real files.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node.support.host import (
    NEW,
    OLD,
    Host,
    apply_request,
    file_step,
    unit_step,
    unsigned,
)

UNIT = "engine.service"
MINE, THEIRS = "a1", "b2"


def asked(run: str = THEIRS, former: str | None = MINE, **more: object) -> dict[str, object]:
    """A claim of change-1 by anna's run."""
    return {"change": "change-1", "run": run, "former": former, "operator": "anna@desk",
            "deploy": "serve", **more}  # fmt: skip


@pytest.fixture
def begun(host: Host) -> Path:
    """A file that a run wrote before it was cut off."""
    path = host.file()
    assert host.call("apply", apply_request(file_step(path), run=MINE))["status"] == "OPEN"
    return path


def test_what_a_run_writes_after_another_one_took_up_is_refused(host: Host, begun: Path) -> None:
    """An operator's laptop slept, another operator went on: each verb of the first is refused."""
    assert host.call("claim", asked())["claimed"] is True
    sleeper: dict[str, dict[str, object]] = {
        "apply": apply_request(file_step(begun, "late\n"), run=MINE),
        "close": {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": MINE},
        "undo": {"change": "change-1", "run": MINE},
    }
    for verb, request in sleeper.items():
        answer = host.call(verb, request)
        assert answer["code"] == "taken_up", answer
        assert "anna@desk (serve)" in answer["error"] and "this run is over" in answer["error"]
    assert begun.read_text() == NEW
    request = apply_request(file_step(begun, "hers\n"), run=THEIRS)
    assert host.call("apply", request)["changed"] and begun.read_text() == "hers\n"
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": THEIRS}
    assert host.call("close", done)["changed"]
    # also once the change is closed, and no other one is open
    assert host.call("apply", sleeper["apply"])["code"] == "taken_up"


def test_a_change_that_another_one_took_meanwhile_is_not_claimed(host: Host, begun: Path) -> None:
    assert host.call("claim", asked())["claimed"]
    late = host.call("claim", asked(run="c3"))
    assert (late["claimed"], late["run"], late["operator"]) == (False, THEIRS, "anna@desk")
    assert late["quiet_s"] < 60
    # the same run asks again after a line that was lost
    assert host.call("claim", asked())["claimed"]


def test_of_two_claims_at_once_one_gets_it(host: Host, begun: Path) -> None:
    runs = [f"r{n}" for n in range(6)]
    started = [
        subprocess.Popen(host.argv("claim"), env=host.environ(), text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in runs
    ]  # fmt: skip
    for run, child in zip(runs, started, strict=True):
        assert child.stdin
        child.stdin.write(json.dumps(asked(run)))
        child.stdin.close()
    answers = [json.loads(child.stdout.read()) for child in started if child.stdout]
    won = [answer["run"] for answer in answers if answer.get("claimed")]
    assert len(won) == 1 and {child.wait() for child in started} == {0}
    assert host.call("journal", {"change": "change-1"})["change"]["run"] == won[0]


def test_a_change_of_an_older_version_is_taken_up_too(host: Host) -> None:
    """It has no token: nobody's."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    stored = host.state / "journal/change-1.json"
    change = unsigned(stored)
    del change["run"]
    stored.write_text(json.dumps(change))
    assert host.call("claim", asked(former=None))["claimed"]
    assert host.call("apply", apply_request(file_step(path, "x\n")))["code"] == "taken_up"


def test_a_claim_meets_the_lock_of_the_dead_runs_last_step(host: Host, begun: Path) -> None:
    holder = host.holding()
    answer = host.call("claim", asked())
    assert answer["code"] == "locked" and f"pid {holder.pid}" in answer["error"]
    holder.communicate("")
    assert host.call("claim", asked())["claimed"]


def units(host: Host, **state: str) -> Path:
    """The stand-in systemctl with engine.service in these states."""
    folder = host.systemctl()
    for name, word in state.items():
        (folder / f"{UNIT}.{name}").write_text(f"{word}\n")
    return folder


def runs(folder: Path) -> str:
    """Whether engine.service runs."""
    return (folder / f"{UNIT}.active").read_text().strip()


def rows(host: Host) -> list[tuple[str, str]]:
    """The change's steps, each with its state."""
    change = host.call("journal", {"change": "change-1"})["change"]
    assert change["status"] == "OPEN"
    return [(step["op"], step["state"]) for step in change["steps"]]


def test_taken_back_is_all_but_the_start_of_the_former_engine(host: Host) -> None:
    """The new engine stops, the files are back, the former one is not started: the next run's
    undo still does, since its unit's steps know what ran before.
    """
    folder, path = units(host, active="active", enabled="enabled"), host.file()
    steps = (file_step(path), unit_step("stop"), unit_step("start"))
    host.call("apply", apply_request(*steps, run=MINE))
    assert runs(folder) == "active"
    claimed = host.call("claim", asked(take_back=True, keep=[UNIT]))
    assert claimed["claimed"] and path.read_text() == OLD and runs(folder) == "inactive"
    assert rows(host) == [("file", "undone"), ("unit", "done"), ("unit", "done")]
    again = (file_step(path, "third\n"), unit_step("start"))
    assert host.call("apply", apply_request(*again, run=THEIRS))["changed"]
    undone = host.call("undo", {"change": "change-1", "run": THEIRS})
    assert undone["status"] == "ROLLED_BACK" and path.read_text() == OLD
    assert runs(folder) == "active" and (folder / "log").read_text().count("start") == 3


def test_what_was_taken_back_and_done_anew_can_be_blessed(host: Host) -> None:
    folder, path = units(host, active="active", enabled="enabled"), host.file()
    host.call("apply", apply_request(file_step(path), unit_step("stop"), run=MINE))
    host.call("claim", asked(take_back=True, keep=[UNIT]))
    host.call("apply", apply_request(file_step(path, "third\n"), unit_step("start"), run=THEIRS))
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": THEIRS}
    assert host.call("close", done)["change"]["status"] == "COMMITTED"
    assert path.read_text() == "third\n" and runs(folder) == "active"


def test_another_unit_is_taken_back_whole(host: Host) -> None:
    """Only the engine waits for the run that goes on."""
    folder, path = units(host, active="active", enabled="enabled"), host.file()
    host.call("apply", apply_request(file_step(path), unit_step("stop"), run=MINE))
    host.call("claim", asked(take_back=True, keep=["rigbook-engine.service"]))
    assert rows(host) == [("file", "undone"), ("unit", "undone")]
    assert runs(folder) == "active"


@pytest.mark.parametrize(("wanted", "before", "now"), [
    ("stop", "active", "inactive"), ("start", "inactive", "active"),
])  # fmt: skip
def test_a_unit_step_whose_outcome_can_be_seen_is_done(
    host: Host, wanted: str, before: str, now: str
) -> None:
    """A node lost its power in a stop: the stop that took it up had nothing to do, and was not
    closed.
    """
    units(host, active=before, enabled="enabled")
    host.call("apply", apply_request(unit_step(wanted), run=MINE))
    stored = host.state / "journal/change-1.json"
    change = unsigned(stored)
    change["steps"][0]["state"] = "intent"
    stored.write_text(json.dumps(change))
    assert host.call("claim", asked())["claimed"]
    assert not host.call("apply", apply_request(unit_step(wanted), run=THEIRS))["changed"]
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": THEIRS}
    assert host.call("close", done).get("changed") is True, host.call("close", done)


def test_what_is_taken_back_is_looked_at(host: Host) -> None:
    """A unit that did not come back was called taken back; the engine's own stays down."""
    folder, path = units(host, active="active", enabled="enabled"), host.file()
    host.call("apply", apply_request(file_step(path), unit_step("stop"), run=MINE))
    (folder / f"{UNIT}.becomes").write_text("inactive\n")
    answer = host.call("claim", asked(take_back=True))
    assert answer["code"] == "undo_incomplete" and "running is False" in answer["error"], answer
    assert host.call("claim", asked(take_back=True, keep=[UNIT]))["claimed"]


def test_a_later_edit_is_not_taken_back(host: Host, begun: Path) -> None:
    begun.write_text("mine\n")
    answer = host.call("claim", asked(take_back=True))
    assert answer["code"] == "later_edit" and begun.read_text() == "mine\n"
    assert host.call("claim", asked(take_back=True, overwrite=[str(begun)]))["claimed"]
    assert begun.read_text() == OLD


def test_a_beat_says_that_a_run_lives_and_the_last_one_that_it_is_over(
    host: Host, begun: Path
) -> None:
    stored = host.state / "journal/change-1.json"
    os.utime(stored, (0, time.time() - 500))

    def quiet() -> Any:
        # a run that has not seen whose it is
        return host.call("claim", asked(run="c3", former="nobody"))["quiet_s"]

    assert quiet() > 400
    assert host.call("beat", {"change": "change-1", "run": MINE})["mine"] is True
    assert quiet() < 60
    os.utime(stored, (0, time.time() - 500))
    assert host.call("beat", {"change": "change-1", "run": THEIRS})["mine"] is False
    assert quiet() > 400
    host.call("beat", {"change": "change-1", "run": MINE, "over": True})
    assert quiet() > 1e9


def test_a_beat_does_not_wait_for_a_step_that_holds_the_lock(host: Host, begun: Path) -> None:
    holder = host.holding()
    assert host.call("beat", {"change": "change-1", "run": MINE})["mine"] is True
    holder.communicate("")


def test_a_committed_change_is_not_taken_back(host: Host, begun: Path) -> None:
    """A sleeping laptop woke and closed its change between another one's look and its claim."""
    assert host.call("close", {"change": "change-1", "status": "COMMITTED", "run": MINE})["changed"]
    answer = host.call("claim", asked(take_back=True))
    assert (answer["claimed"], answer["status"]) == (False, "COMMITTED")
    assert begun.read_text() == NEW


def test_a_rollback_claims_a_committed_change(host: Host, begun: Path) -> None:
    assert host.call("close", {"change": "change-1", "status": "COMMITTED", "run": MINE})["changed"]
    assert host.call("claim", asked())["claimed"] is True
    assert begun.read_text() == NEW
