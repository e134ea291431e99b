"""Steps that cannot be undone: named, and no change is called ROLLED_BACK for the others' sake."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.unit.node.change.test_journal_states import write
from tests.unit.node.support.host import OLD, Host, apply_request, file_step

RESTART: dict[str, Any] = {"op": "restart", "state": "done", "namespace": "hami",
                           "deployment": "dp", "pod": "u"}  # fmt: skip
REAP: dict[str, Any] = {"op": "reap", "state": "done", "identities": [], "verdict": "clean"}
CACHES: dict[str, Any] = {"op": "caches", "state": "done", "before": {}}


def status(host: Host) -> tuple[str, str | None]:
    """Status and reason of the one change."""
    found = host.call("journal", {"change": "change-1"})["change"]
    return found["status"], found["reason"]


@pytest.mark.parametrize("before", ["OPEN", "COMMITTED", "INCONSISTENT"])
@pytest.mark.parametrize("rows", [[RESTART], [REAP, RESTART]])
def test_a_change_of_which_all_lasts_is_refused_and_stays_what_it_is(
    host: Host, rows: list[dict[str, Any]], before: str
) -> None:
    """The pods were new, and the undo said ROLLED_BACK."""
    words = "hami/dp keep what they started with"
    write(host, "change-1", status=before, steps=rows)
    answer = host.call("undo", {"change": "change-1"})
    assert answer["code"] == "irreversible" and words in answer["error"], answer
    assert "nothing was done" in answer["error"] and "rignode close" in answer["remedy"]
    assert status(host)[0] == before
    if before != "COMMITTED":
        body = {"change": "change-1", "status": "COMMITTED", "reason": "kept as it is"}
        assert host.call("close", body)["change"]["status"] == "COMMITTED"


def test_what_can_go_back_does_and_the_rest_is_named(host: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    found = host.call("journal", {"change": "change-1"})["change"]
    write(host, "change-1", status="OPEN", steps=[*found["steps"], RESTART])
    answer = host.call("undo")
    assert path.read_text() == OLD
    assert answer["code"] == "undo_incomplete" and "hami/dp keep" in answer["error"], answer
    assert '"COMMITTED"' in answer["remedy"] and status(host)[0] == "INCONSISTENT"
    asked = {"change": "change-1", "status": "ROLLED_BACK", "reason": "seen"}
    assert host.call("close", asked)["code"] == "unfinished"
    assert host.call("close", {**asked, "status": "COMMITTED"})["ok"]


def test_what_was_nobodys_is_named_in_the_reason(host: Host) -> None:
    """An orphan that was ended served nobody: there is no former state that misses it."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    found = host.call("journal", {"change": "change-1"})["change"]
    alone = {**RESTART, "lasts": False}
    write(host, "change-1", status="OPEN", steps=[REAP, CACHES, alone, *found["steps"]])
    answer = host.call("undo", {"reason": "no answer"})
    assert answer["left"] == ["not undone: reap, caches, restart"]
    assert status(host) == ("ROLLED_BACK", "no answer; not undone: reap, caches, restart")
    assert path.read_text() == OLD


def test_somebody_elses_file_in_a_folder_of_ours_is_named_in_the_reason(host: Host) -> None:
    folder = host.root / "made"
    host.call("apply", apply_request({"op": "directory", "path": str(folder), "mode": "0755"}))
    (folder / "theirs").write_text("x")
    assert host.call("undo")["left"] == [f"{folder}: kept: the folder is not empty"]
    assert status(host) == ("ROLLED_BACK", f"undone; {folder}: kept: the folder is not empty")


@pytest.mark.parametrize("cut", [
    {**REAP, "verdict": None}, CACHES, {"op": "shm", "segments": [], "removed": []},
])  # fmt: skip
def test_what_a_dead_run_was_cut_off_in_and_lasts_not_keeps_no_change_open(
    host: Host, cut: dict[str, Any]
) -> None:
    """The run that took it up found nothing left to end or to drop, and could not be closed."""
    write(host, "change-1", status="OPEN", run="a1", steps=[{**cut, "state": "intent"}])
    claim = {"change": "change-1", "run": "b2", "former": "a1", "operator": "anna@desk",
             "deploy": "serve", "take_back": True}  # fmt: skip
    assert host.call("claim", claim)["claimed"]
    path = host.file()
    host.call("apply", apply_request(file_step(path), run="b2"))
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": "b2"}
    assert host.call("close", done).get("changed") is True, host.call("close", done)


def test_the_remedy_for_what_was_cut_off_and_lasts_can_be_typed(host: Host) -> None:
    """undo named close, and close named undo."""
    write(host, "change-1", status="OPEN", steps=[{**RESTART, "state": "intent"}])
    told = host.call("undo", {"change": "change-1"})
    assert told["code"] == "irreversible"
    for typed in re.findall(r"rignode close '(.*?)'", told["remedy"]):
        assert host.call("close", json.loads(typed))["ok"], told
    assert status(host)[0] == "COMMITTED"
