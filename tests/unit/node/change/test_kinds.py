"""One protocol for all kinds: a new one, an unknown one, and one that cannot be looked up."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.change import apply, close, journal, kinds, undo
from node.core.errors import CannotRead, NodeError
from node.core.run import run
from tests.unit.node.change.test_link_and_tree_step import tree_step, two
from tests.unit.node.change.toy_step import ToyKind
from tests.unit.node.support import strace
from tests.unit.node.support.host import (
    NEW,
    OLD,
    Host,
    apply_request,
    change,
    file_step,
    unsigned,
)


@pytest.fixture
def toy(host: Host, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kind from a module of the tests, and the file that it is about."""
    monkeypatch.setitem(kinds.KINDS, "toy", "tests.unit.node.change.toy_step:ToyKind")
    path = host.root / "number"
    path.write_text("1")
    return path


def request(path: Path, value: int, **more: object) -> dict[str, Any]:
    return {"change": change(), "steps": [{"op": "toy", "file": str(path), "value": value}], **more}


def test_a_new_kind_is_one_row_and_one_file(toy: Path) -> None:
    assert apply.apply(request(toy, 2, dry=True))["changed"] and toy.read_text() == "1"
    (step,) = apply.apply(request(toy, 2))["steps"]
    assert step == {"op": "toy", "changed": True, "detail": "is 2"}
    assert not apply.apply(request(toy, 2))["changed"]
    with pytest.raises(NodeError, match=r"steps\[0\].value is not a number"):
        apply.apply(request(toy, 100))
    (entry,) = journal.get("change-1")["steps"]
    kind = kinds.of(entry)
    assert kind.verify(entry, "post") == []
    assert kind.verify(entry, "pre") == ["the toy is 2.0, not 1.0"]
    answer = undo.undo({})
    assert answer["status"] == "ROLLED_BACK"
    assert answer["steps"] == [{"op": "toy", "detail": "is 1 again"}]
    assert kind.verify(entry, "pre") == [] and not undo.undo({"change": "change-1"})["changed"]


@pytest.mark.parametrize("said", ["sleep did not answer in 0.1 s", "the server is away"])
def test_what_stood_before_a_step_that_is_late_or_cannot_read_is_taken_back(
    host: Host, toy: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Neither is a NodeError: the steps before were left done, and the program was blamed."""

    def do(*_: object) -> tuple[bool, str]:
        if "sleep" in said:
            run(["sleep", "60"], 0.1)
        raise CannotRead(said)

    monkeypatch.setattr(ToyKind, "do", do)
    asked = request(toy, 2)
    asked["steps"].insert(0, file_step(host.file()))
    with pytest.raises(NodeError, match=f"{said}; nothing was changed"):
        apply.apply(asked)
    assert host.file(text=None).read_text() == OLD and journal.read_all() == ([], [])


def test_a_new_kind_that_a_kill_cut_short_is_recovered(toy: Path) -> None:
    apply.apply(request(toy, 2))
    found = journal.get("change-1")
    found["steps"][0]["state"] = "intent"
    journal.save(found)
    done = close.close({"change": "change-1", "status": "COMMITTED"})["change"]
    assert done["steps"][0]["state"] == "done"


@pytest.mark.parametrize(("said", "words"), [
    ("done", "the toy is 2.0, not 3.0"), ("undone", "the toy is 2.0, not 1.0"),
])  # fmt: skip
def test_recover_believes_no_kind_without_a_look(
    toy: Path, monkeypatch: pytest.MonkeyPatch, said: str, words: str
) -> None:
    apply.apply(request(toy, 2))
    found = journal.get("change-1")
    found["steps"][0].update(state="intent", post=3.0)
    journal.save(found)
    monkeypatch.setattr(ToyKind, "recover", lambda *_: said)
    (row,) = close.close({"change": "change-1", "status": "INCONSISTENT"})["change"]["steps"]
    assert (row["state"], row["why"]) == ("unknown", words)


def test_a_new_kind_is_taken_back_with_the_call_that_fails(toy: Path, host: Host) -> None:
    asked = request(toy, 2)
    asked["steps"].append({"op": "toy", "file": str(host.root / "gone"), "value": 3})
    with pytest.raises(NodeError, match="nothing was changed"):
        apply.apply(asked)
    assert float(toy.read_text()) == 1 and journal.find("change-1") is None


def test_the_journal_tells_a_step_without_its_kind(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot does not send the kinds; rows of older versions fall back to op and subject."""
    apply.apply(request(toy, 2))
    monkeypatch.delitem(kinds.KINDS, "toy")
    (row,) = journal.summary_section()["changes"]
    assert row["steps"] == ["set the toy to 2 (done)"]
    old = {"op": "unit", "unit": "engine.service", "active": "restart", "state": "done"}
    assert journal.describe(old) == "unit engine.service (done)"
    assert journal.describe({"state": "unknown"}) == "step (what became of it is not known)"


def edit(host: Host, how: Callable[[dict[str, Any]], None]) -> None:
    """Edit the journal of the one change."""
    (path,) = (host.state / "journal").glob("*.json")
    found = unsigned(path)
    how(found)
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(("how", "code", "words"), [
    (lambda row: row["steps"].append({"op": "quota", "state": "done"}), "unknown_kind",
     "change change-1 has a step of the kind 'quota'"),
    (lambda row: row.update(format=2), "unknown_format", "change change-1 has format 2"),
])  # fmt: skip
def test_what_another_version_wrote_is_listed_and_refused(
    host: Host, how: Callable[[dict[str, Any]], None], code: str, words: str
) -> None:
    """It was skipped in silence, and the change called ROLLED_BACK."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    edit(host, how)
    asked: dict[str, dict[str, object]] = {
        "undo": {}, "close": {"change": "change-1", "status": "COMMITTED"},
        "apply": apply_request(file_step(path, "third\n")),
    }  # fmt: skip
    for verb, body in asked.items():
        answer = host.call(verb, body)
        assert (answer["ok"], answer["code"]) == (False, code), answer
        assert words in answer["error"] and "this rignode" in answer["error"]
    assert path.read_text() == NEW
    assert "OPEN change-1" in host.run(host.argv("status")).stdout


def test_a_tool_whose_pre_image_is_gone_does_not_wedge_the_node(host: Host) -> None:
    """An undo says what it cannot find out, and the change can be ended by hand."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    row = {"op": "tool", "tool": "mend", "tree": str(host.root), "argv": [], "state": "intent",
           "pack": "0" * 64, "before": {}}  # fmt: skip
    edit(host, lambda found: found["steps"].append(row))
    answer = host.call("undo")
    assert answer["code"] == "undo_incomplete" and "tool mend" in answer["error"], answer
    closed = host.call("close", {"change": "change-1", "status": "COMMITTED", "reason": "by hand"})
    assert not closed["ok"] or closed["change"]["status"] == "COMMITTED"
    body = apply_request(file_step(host.root / "other"), name="change-2")
    assert host.call("apply", body)["ok"], "no change is open for ever"
    assert path.read_text() == OLD, "the rest went back"


def test_a_tree_whose_kept_folder_is_gone_does_not_wedge_the_node(host: Host) -> None:
    two(host)
    kept = host.root / "kept" / "tree"
    kept.parent.mkdir()
    host.call("apply", apply_request(tree_step(host, displaced=str(kept))))
    # killed between the exchange and the move, and the folder tidied away
    kept.rename(host.root / "fresh")
    kept.parent.rmdir()
    edit(host, lambda found: found["steps"][0].update(state="intent"))
    closed = host.call("close", {"change": "change-1", "status": "INCONSISTENT"})
    (row,) = closed["change"]["steps"]
    assert row["state"] == "unknown" and "kept" in row["why"]
    assert (host.root / "fresh" / "version").read_text() == "old"


def test_a_target_that_went_read_only_does_not_wedge_the_node(host: Host, tmp_path: Path) -> None:
    """unlink says EROFS there also for a temp file that is not there."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    edit(host, lambda found: found["steps"][0].update(state="intent"))
    body = json.dumps({"change": "change-1", "status": "INCONSISTENT"})
    options = ["-e", "trace=unlinkat,unlink", "-e", "inject=unlinkat,unlink:error=EROFS"]
    done = strace.traced(host, "close", body, options, tmp_path / "log")
    answer = json.loads(done.stdout)
    assert answer["ok"] and answer["change"]["steps"][0]["state"] == "done", answer


@pytest.mark.parametrize("state", ["intent", "done"])
def test_a_mount_that_went_read_only_is_told_and_undone_later(
    host: Host, small_disk: Path, state: str
) -> None:
    """A real one, with the journal elsewhere."""
    path = small_disk / "file.conf"
    path.write_text(OLD)
    host.call("apply", apply_request(file_step(path)))
    edit(host, lambda found: found["steps"][0].update(state=state))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for _ in range(2):
        answer = host.call("undo")
        assert answer["code"] == "undo_incomplete" and "Read-only file system" in answer["error"]
    assert host.call("journal")["changes"][0]["status"] == "INCONSISTENT"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == OLD


@pytest.mark.parametrize(("op", "words"), [
    ("work", "'work' is not asked for"), ("quota", "not one of file, absent"),
])  # fmt: skip
def test_a_step_that_is_not_for_requests_is_refused(host: Host, op: str, words: str) -> None:
    answer = host.call("apply", apply_request({"op": op, "path": str(host.root / "x")}))
    assert answer["code"] == "bad_request" and words in answer["error"]
