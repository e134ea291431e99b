"""undo: back to what was, never over a later edit unasked, and safe to repeat."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.node.support.host import (
    NEW,
    OLD,
    Host,
    apply_request,
    file_step,
    mode,
    unit_step,
    unsigned,
)


@pytest.fixture
def units(host: Host) -> Path:
    """The folder of the stand-in systemctl, whose engine.service runs."""
    units = host.systemctl()
    (units / "engine.service.active").write_text("active\n")
    return units


def states(units: Path) -> tuple[str, ...]:
    """Whether engine.service runs, and whether it is enabled where that was touched."""
    files = (units / f"engine.service.{name}" for name in ("active", "enabled"))
    return tuple(file.read_text().strip() for file in files if file.exists())


def committed(host: Host, text: str = NEW, name: str = "change-1") -> Path:
    """A file that a blessed change wrote."""
    path = host.root / "file.conf" if (host.root / "file.conf").exists() else host.file()
    assert host.call("apply", apply_request(file_step(path, text), name=name))["changed"]
    assert host.call("close", {"change": name, "status": "COMMITTED"})["ok"]
    return path


def test_undo_brings_back_content_and_mode_and_twice_is_nothing(host: Host) -> None:
    path, fresh = host.file(), host.root / "fresh"
    host.call("apply", apply_request(file_step(path), file_step(fresh)))
    answer = host.call("undo")
    assert (answer["change"], answer["status"]) == ("change-1", "ROLLED_BACK")
    assert (path.read_text(), mode(path)) == (OLD, 0o640) and not fresh.exists()
    before = path.stat().st_ino
    again = host.call("undo", {"change": "change-1"})
    assert again["changed"] is False and path.stat().st_ino == before
    assert host.call("undo")["detail"] == "nothing to undo"


def test_two_steps_on_one_file_go_back_to_the_first(host: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path, "one\n"), file_step(path, "two\n")))
    host.call("undo")
    assert path.read_text() == OLD


EDITS: dict[str, Callable[[Path], object]] = {
    "content": lambda path: path.write_text("mine\n"),
    "mode": lambda path: path.chmod(0o600), "gone": Path.unlink,
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_later_edit_is_refused_by_name(host: Host, edit: str) -> None:
    path, other = host.file(), host.file("other")
    host.call("apply", apply_request(file_step(path), file_step(other)))
    EDITS[edit](path)
    answer = host.call("undo")
    assert answer["code"] == "later_edit" and str(path) in answer["error"]
    assert str(other) not in answer["error"] and f"--overwrite {path}" in answer["remedy"]
    assert other.read_text() == NEW
    assert host.call("undo", {"overwrite": [str(other)]})["code"] == "later_edit"
    assert host.call("undo", {"overwrite": [str(path)]})["status"] == "ROLLED_BACK"
    assert (path.read_text(), mode(path), other.read_text()) == (OLD, 0o640, OLD)


def test_an_overwritten_edit_is_kept(host: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    path.write_text("mine\n")
    host.call("undo", {"overwrite": [str(path)]})
    step = host.call("journal", {"change": "change-1"})["change"]["steps"][0]
    assert (host.state / "blobs" / step["overwrote"]).read_text() == "mine\n"


def test_a_blessed_change_is_undone_only_by_its_id(host: Host) -> None:
    path = committed(host)
    assert host.call("undo")["changed"] is False and path.read_text() == NEW
    assert host.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"
    assert path.read_text() == OLD


def test_a_blessed_change_under_a_later_one_is_refused(host: Host) -> None:
    path = committed(host)
    committed(host, "third\n", "change-2")
    assert host.call("undo", {"change": "change-1"})["code"] == "later_edit"
    assert path.read_text() == "third\n"


def test_the_newest_unblessed_change_is_picked(host: Host) -> None:
    first, second = host.file("first"), host.file("second")
    host.call("apply", apply_request(file_step(first)))
    host.call("close", {"change": "change-1", "status": "INCONSISTENT", "reason": "no answer"})
    host.call("apply", apply_request(file_step(second), name="change-2"))
    assert host.call("undo")["change"] == "change-2"
    assert host.call("undo")["change"] == "change-1"
    assert (first.read_text(), second.read_text()) == (OLD, OLD)


def test_a_damaged_pre_image_is_named_first_and_the_rest_is_put_back_if_asked(host: Host) -> None:
    path, other = host.file(text="precious\n"), host.file("other")
    host.call("apply", apply_request(file_step(path), file_step(other)))
    entry = host.call("journal", {"change": "change-1"})["change"]["steps"][0]
    blob = host.state / "blobs" / entry["pre"]["sha256"]
    blob.write_text("flipped\n")
    assert host.call("undo")["code"] == "blob_damaged"
    assert (path.read_text(), other.read_text()) == (NEW, NEW)
    answer = host.call("undo", {"overwrite": [str(path)]})
    assert answer["code"] == "undo_incomplete" and "damaged" in answer["error"]
    assert (path.read_text(), other.read_text()) == (NEW, OLD)
    seen = host.call("journal", {"change": "change-1"})["change"]
    assert seen["status"] == "INCONSISTENT" and "damaged" in seen["reason"]
    blob.write_text("precious\n")
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert path.read_text() == "precious\n"


def test_units_go_back_in_order(host: Host, units: Path) -> None:
    host.call("apply", apply_request(file_step(host.file()), unit_step("restart", enabled=True)))
    (units / "log").unlink()
    host.call("undo")
    ran = [line for line in (units / "log").read_text().splitlines() if line[:4] != "show"]
    assert ran == ["stop engine.service", "disable engine.service", "daemon-reload ",
                   "reset-failed engine.service", "start --no-block engine.service"]  # fmt: skip
    assert states(units) == ("active", "disabled")


def test_without_start_units_it_stops_and_names_what_to_start(host: Host, units: Path) -> None:
    host.call("apply", apply_request(unit_step("restart")))
    answer = host.call("undo", {"start_units": False})
    assert answer["to_start"] == ["engine.service"] and answer["status"] == "ROLLED_BACK"
    assert states(units) == ("inactive",)


def test_a_stop_step_is_undone_by_a_start_and_a_new_unit_is_not_left_running(
    host: Host, units: Path
) -> None:
    host.call("apply", apply_request(unit_step("stop")))
    assert states(units) == ("inactive",)
    host.call("undo")
    assert states(units) == ("active",)
    (units / "engine.service.active").unlink()
    host.call("apply", apply_request(unit_step("start", enabled=True), name="change-2"))
    host.call("undo")
    assert states(units) == ("inactive", "disabled")


def test_a_unit_that_will_not_start_ends_inconsistent_and_can_be_repeated(
    host: Host, units: Path
) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path), unit_step("restart")))
    (units / "fail-start").touch()
    answer = host.call("undo")
    assert answer["code"] == "undo_incomplete" and path.read_text() == OLD
    assert host.call("journal")["changes"][0]["status"] == "INCONSISTENT"
    (units / "fail-start").unlink()
    assert host.call("undo")["status"] == "ROLLED_BACK" and states(units) == ("active",)


def test_a_second_apply_of_as_wanted_unit_runs_nothing(host: Host) -> None:
    units = host.systemctl()
    request = apply_request(unit_step("start", enabled=True))
    assert host.call("apply", request)["changed"] is True
    (units / "log").unlink()
    assert host.call("apply", request)["changed"] is False
    assert {line.split()[0] for line in (units / "log").read_text().splitlines()} == {"show"}


def test_a_folder_that_is_in_use_stays(host: Host) -> None:
    folder = host.root / "made"
    make = {"op": "directory", "path": str(folder), "mode": "0755"}
    host.call("apply", apply_request(make))
    (folder / "theirs").write_text("x")
    answer = host.call("undo")
    assert "not empty" in answer["steps"][0]["detail"] and (folder / "theirs").exists()


def test_a_blessed_change_is_not_undone_under_another_one_that_is_open(host: Host) -> None:
    """A's undo would stop the engine that B's run is about to prove."""
    path = committed(host)
    other = host.root / "other.conf"
    host.call("apply", apply_request(file_step(other), name="change-2"))
    answer = host.call("undo", {"change": "change-1"})
    assert answer["code"] == "change_open" and "change-2 (serve, tester@here)" in answer["error"]
    assert path.read_text() == NEW and "rignode undo change-2" in answer["remedy"]
    assert host.call("undo", {"change": "change-1", "despite": "change-9"})["ok"] is False
    done = host.run(host.argv("undo", "change-1", "--despite", "change-2"))
    assert done.returncode == 0 and path.read_text() == OLD


def test_an_open_change_that_is_older_is_no_reason_to_keep_a_newer_one(host: Host) -> None:
    """The newest goes first."""
    first = host.file("first.conf")
    host.call("apply", apply_request(file_step(first)))
    stored = host.state / "journal/change-1.json"
    newer = unsigned(stored)
    newer.update(id="change-2", opened_unix_s=newer["opened_unix_s"] + 9, steps=[])
    (stored.parent / "change-2.json").write_text(json.dumps(newer))
    assert host.call("undo", {"change": "change-1"})["code"] == "change_open"
    assert host.call("undo", {"change": "change-2"})["status"] == "ROLLED_BACK"
