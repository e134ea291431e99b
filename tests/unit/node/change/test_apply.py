"""apply and close: what is changed, what is refused, what the journal says."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.change import journal as journals
from node.files import atomic
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

COMMIT = {"change": "change-1", "status": "COMMITTED", "reason": "answered"}
NO_ANSWER = {"change": "change-1", "status": "INCONSISTENT", "reason": "no answer"}


def journal(host: Host, name: str = "change-1") -> dict[str, Any]:
    found: dict[str, Any] = host.call("journal", {"change": name})["change"]
    return found


def own_file(host: Host) -> Path:
    """The journal's file of a change of one file."""
    assert host.call("apply", apply_request(file_step(host.file())))["changed"] is True
    return host.state / "journal" / "change-1.json"


def test_a_file_is_replaced_with_mode_and_the_pre_image_is_kept(host: Host) -> None:
    path = host.file()
    answer = host.call("apply", apply_request(file_step(path)))
    assert (answer["changed"], answer["status"]) == (True, "OPEN")
    assert (path.read_text(), mode(path)) == (NEW, 0o644)
    (entry,) = journal(host)["steps"]
    assert entry["state"] == "done" and entry["pre"]["mode"] == "0640"
    blob = host.state / "blobs" / entry["pre"]["sha256"]
    assert blob.read_text() == OLD and (mode(blob), mode(host.state)) == (0o600, 0o700)
    assert host.leftovers() == []


def test_a_second_apply_changes_nothing_and_opens_no_change(host: Host) -> None:
    own_file(host)
    host.call("close", COMMIT)
    path = host.root / "file.conf"
    inode = path.stat().st_ino
    answer = host.call("apply", apply_request(file_step(path), name="change-2"))
    assert answer["changed"] is False and answer["change"] is None
    assert path.stat().st_ino == inode
    assert [row["id"] for row in host.call("journal")["changes"]] == ["change-1"]


def test_content_base64_directory_and_absent(host: Host) -> None:
    folder, gone = host.root / "new", host.file("gone")
    raw = bytes(range(256))
    step = {"op": "file", "path": str(folder / "bin"), "mode": "0600",
            "content_base64": base64.b64encode(raw).decode()}  # fmt: skip
    make = {"op": "directory", "path": str(folder), "mode": "0751"}
    answer = host.call("apply", apply_request(make, step, {"op": "absent", "path": str(gone)}))
    assert [row["changed"] for row in answer["steps"]] == [True, True, True]
    assert (folder / "bin").read_bytes() == raw and not gone.exists() and mode(folder) == 0o751
    host.call("undo")
    assert gone.read_text() == OLD and not folder.exists()


def test_what_lies_in_a_folder_that_only_changes_its_mode_is_looked_at(host: Host) -> None:
    make = {"op": "directory", "path": str(host.root / "there"), "mode": "0751"}
    (host.root / "there").mkdir(mode=0o755)
    edited = host.file("there/edited")
    same = apply_request(make, file_step(edited, OLD, mode="0640"))
    dry = host.call("apply", {**same, "dry": True})
    assert [row["changed"] for row in dry["steps"]] == [True, False]
    stale = file_step(edited, expect_sha256="absent")
    assert host.call("apply", apply_request(make, stale))["code"] == "changed_meanwhile"
    assert edited.read_text() == OLD


def test_dry_writes_nothing(host: Host) -> None:
    units = host.systemctl()
    path = host.file()
    request = {**apply_request(file_step(path), unit_step("restart")), "dry": True}
    answer = host.call("apply", request)
    assert [row["changed"] for row in answer["steps"]] == [True, True]
    assert path.read_text() == OLD and not host.state.exists()
    assert {line.split()[0] for line in (units / "log").read_text().splitlines()} == {"show"}


@pytest.mark.parametrize(("name", "more", "code", "words"), [
    ("file.conf", {"expect_sha256": "absent"}, "changed_meanwhile", "file.conf"),
    ("file.conf", {"expect_sha256": "0" * 64}, "changed_meanwhile", "file.conf"),
    ("link", {}, "not_a_file", "symbolic link"), ("no/x", {}, "no_folder", "/host/no"),
])  # fmt: skip
def test_what_the_caller_did_not_see_and_what_is_no_file_is_refused(
    host: Host, name: str, more: dict[str, object], code: str, words: str
) -> None:
    path = host.file()
    (host.root / "link").symlink_to(path)
    answer = host.call("apply", apply_request(file_step(host.root / name, **more)))
    assert answer["code"] == code and words in answer["error"]
    assert path.read_text() == OLD and (host.root / "link").is_symlink()


def test_a_failing_validator_changes_nothing(host: Host) -> None:
    first, second = host.file("first"), host.file("second.sh")
    bad = file_step(second, "if then\n", validate=["sh", "-n", "{tmp}"])
    answer = host.call("apply", apply_request(file_step(first), bad))
    assert answer["code"] == "not_valid" and "nothing was changed" in answer["error"]
    assert "\n" not in answer["error"] and ".rigbook-" not in answer["error"]
    assert (first.read_text(), second.read_text(), mode(first)) == (OLD, OLD, 0o640)
    assert host.call("journal") == {"ok": True, "changes": [], "broken": []}
    assert host.leftovers() == []


def test_a_validator_of_a_sensitive_file_is_not_quoted(host: Host) -> None:
    tells = ["sh", "-c", "cat $0; exit 1", "{tmp}"]
    step = file_step(host.file(), "hunter2", sensitive=True, validate=tells)
    answer = host.call("apply", apply_request(step))
    assert answer["code"] == "not_valid" and "hunter2" not in json.dumps(answer)


@pytest.mark.parametrize(("bits", "ok"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_a_folder_that_everybody_may_write_in_is_refused(host: Host, bits: int, ok: bool) -> None:
    folder = host.root / "open"
    (folder / "sub").mkdir(parents=True)
    folder.chmod(bits)
    for path in (folder / "a", folder / "sub" / "b"):
        answer = host.call("apply", apply_request(file_step(path)))
        assert answer["ok"] is ok and path.exists() is ok
        assert ok or answer["code"] == "unsafe_folder"


def test_another_open_change_refuses(host: Host) -> None:
    own_file(host)
    other = host.file("other")
    answer = host.call("apply", apply_request(file_step(other), name="change-2"))
    assert answer["code"] == "change_open" and "change-1" in answer["error"]
    assert "rignode undo change-1" in answer["remedy"]
    assert other.read_text() == OLD


def test_an_open_change_is_appended_to_and_a_closed_one_is_not(host: Host) -> None:
    own_file(host)
    host.call("apply", apply_request(file_step(host.file("second"))))
    assert len(journal(host)["steps"]) == 2
    host.call("close", COMMIT)
    answer = host.call("apply", apply_request(file_step(host.root / "file.conf", "third\n")))
    assert answer["code"] == "change_closed"


def test_a_damaged_journal_blocks_and_is_reported(host: Host) -> None:
    own_file(host).with_name("change-0.json").write_text("{")
    answer = host.call("apply", apply_request(file_step(host.root / "file.conf", "x\n")))
    assert answer["code"] == "journal_broken" and "change-0.json" in answer["error"]
    assert [row.partition(": ")[0][-13:] for row in host.call("journal")["broken"]] == [
        "change-0.json"]  # fmt: skip


def test_close_does_not_lie(host: Host) -> None:
    own_file(host)
    assert host.call("close", {**COMMIT, "status": "ROLLED_BACK"})["code"] == "unfinished"
    done = host.call("close", COMMIT)
    assert done["change"]["status"] == "COMMITTED" and done["changed"] is True
    assert host.call("close", {"change": "change-1", "status": "COMMITTED"})["changed"] is False
    again = host.call("close", {"change": "change-1", "status": "INCONSISTENT"})
    assert again["code"] == "change_closed"
    assert host.call("close", {"change": "change-9", "status": "COMMITTED"})["code"] == "no_change"


def test_a_status_that_was_settled_changes_only_with_a_reason(host: Host) -> None:
    own_file(host)
    host.call("close", NO_ANSWER)
    silent = host.call("close", {"change": "change-1", "status": "COMMITTED"})
    assert silent["code"] == "bad_request" and "only with a reason" in silent["error"]
    assert journal(host)["status"] == "INCONSISTENT"
    assert host.call("close", COMMIT)["changed"] is True


def test_a_change_that_was_undone_is_never_blessed(host: Host) -> None:
    own_file(host)
    host.call("undo")
    assert host.call("close", COMMIT)["code"] == "change_closed"


def test_a_step_that_failed_is_made_good_only_by_a_later_one_of_its_own(host: Host) -> None:
    units = host.systemctl()
    (units / "fail-start").touch()
    host.call("apply", apply_request(unit_step("start")))
    (units / "fail-start").unlink()
    own_file(host)
    refused = host.call("close", COMMIT)
    assert refused["code"] == "unfinished" and "unit engine.service start" in refused["error"]
    host.call("apply", apply_request(unit_step("start")))
    assert host.call("close", COMMIT)["change"]["status"] == "COMMITTED"


def test_a_journal_file_under_another_name_is_damaged(host: Host) -> None:
    own = own_file(host)
    own.with_name("change-2.json").write_bytes(own.read_bytes())
    assert [row.partition(": ")[0][-13:] for row in host.call("journal")["broken"]] == [
        "change-2.json"]  # fmt: skip
    assert host.call("journal", {"change": "change-2"})["code"] == "journal_broken"


def test_what_is_not_settled_stays_in_view_however_old(host: Host) -> None:
    """A gate blocks on it: thirty later changes must not hide it from the snapshot."""
    own = own_file(host)
    host.call("close", NO_ANSWER)
    old = unsigned(own)
    for n in range(30):
        later = {**old, "id": f"later-{n:02}", "status": "COMMITTED", "opened_unix_s": 9e9 + n}
        own.with_name(f"later-{n:02}.json").write_text(json.dumps(later))
    seen = [(row["id"], row["status"]) for row in journals.summary_section()["changes"]]
    assert len(seen) == 20 and ("change-1", "INCONSISTENT") in seen


def watch(monkeypatch: pytest.MonkeyPatch, name: str, note: Callable[[int], object]) -> None:
    """Note what a call of `os` gets, before it is made."""
    real = getattr(os, name)

    def call(fd: int, *rest: Any) -> Any:
        note(fd)
        return real(fd, *rest)

    monkeypatch.setattr(os, name, call)


def test_a_file_is_nobody_elses_before_it_holds_a_byte(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the empty temp file nor the one that is being filled (faults 52, 53)."""
    path, seen = host.file(), []
    for name in ("fchown", "write"):
        watch(monkeypatch, name, lambda fd, n=name: seen.append((n, os.fstat(fd).st_mode & 0o7777)))
    before = os.umask(0)
    try:
        with atomic.Folder(str(path)) as folder:
            owner = atomic.Owner(0o640, os.geteuid(), os.getegid())
            atomic.replace(folder, b"secret", owner, atomic.temp_name(folder.name))
    finally:
        os.umask(before)
    assert seen == [("fchown", 0o600), ("write", 0o640)]


def test_what_is_removed_or_replaced_is_flushed_with_its_folder(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut brings back neither the old name nor an empty file."""
    path, seen = host.file(), []
    watch(monkeypatch, "fsync", lambda fd: seen.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    with atomic.Folder(str(path)) as folder:
        owner = atomic.Owner(0o640, os.geteuid(), os.getegid())
        atomic.replace(folder, b"new", owner, ".rigbook-temp")
        folder.unlink(folder.name)
    assert seen == [str(host.root / ".rigbook-temp"), str(host.root), str(host.root)]


def test_a_kept_copy_that_was_damaged_is_made_anew(host: Host) -> None:
    """Before a step that needs it: afterwards nobody has the bytes any more."""
    own_file(host)
    host.call("undo")
    (blob,) = (host.state / "blobs").iterdir()
    blob.write_text("flipped")
    path = host.root / "file.conf"
    host.call("apply", apply_request(file_step(path), name="change-2"))
    assert blob.read_text() == OLD
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == OLD


def test_a_failing_unit_leaves_the_change_open_and_undo_goes_back(host: Host) -> None:
    units, path = host.systemctl(), host.file()
    (units / "engine.service.active").write_text("active\n")
    (units / "fail-restart").touch()
    answer = host.call("apply", apply_request(file_step(path), unit_step("restart")))
    assert answer["code"] == "unit_failed" and "Job for engine.service failed." in answer["error"]
    assert "stays OPEN" in answer["error"] and path.read_text() == NEW
    assert [row["state"] for row in journal(host)["steps"]] == ["done", "failed"]
    assert host.call("close", COMMIT)["code"] == "unfinished"
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert path.read_text() == OLD
    assert (units / "engine.service.active").read_text() == "active\n"
