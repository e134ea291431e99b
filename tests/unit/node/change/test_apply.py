"""apply and close: what is changed, what is refused, what the journal says."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node import host_files
from node.change import journal as change_journal
from node.core import files, owner
from node.rules.secret import API_KEY
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
    seen = [(row["id"], row["status"]) for row in change_journal.summary_section()["changes"]]
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
        with files.Folder(str(path)) as folder:
            owner = files.Owner(0o640, os.geteuid(), os.getegid())
            files.replace(folder, b"secret", owner, files.temp_name(folder.name))
    finally:
        os.umask(before)
    assert seen == [("fchown", 0o600), ("write", 0o640)]


def test_what_is_removed_or_replaced_is_flushed_with_its_folder(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut brings back neither the old name nor an empty file."""
    path, seen = host.file(), []
    watch(monkeypatch, "fsync", lambda fd: seen.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    with files.Folder(str(path)) as folder:
        owner = files.Owner(0o640, os.geteuid(), os.getegid())
        files.replace(folder, b"new", owner, ".rigbook-temp")
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


# What somebody else does to a path while a change is made.

EDIT = "edited by hand"
# of an entry of an ACL that names nobody
NOBODY = 0xFFFFFFFF


@pytest.mark.parametrize("how", ["written", "renamed", "chmod"])
def test_an_edit_made_while_a_validator_runs_is_kept(host: Host, how: str) -> None:
    """A validator may take 20 s; the edit was overwritten, and the undo gave back older text."""
    path = host.file("conf")
    act = {"written": f"printf '{EDIT}' > {path}", "chmod": f"chmod 600 {path}",
           "renamed": f"printf '{EDIT}' > {path}.x && mv {path}.x {path}"}[how]  # fmt: skip
    step = {**file_step(path), "validate": ["/bin/sh", "-c", act]}
    answer = host.call("apply", apply_request(step))
    assert not answer["ok"] and answer["code"] == "changed_meanwhile", answer
    assert "was edited while it was checked" in answer["error"]
    assert path.read_text() == (OLD if how == "chmod" else EDIT)
    change = json.loads((host.state / "journal" / "change-1.json").read_text())
    undone = host.call("undo", {"change": "change-1"})
    assert path.read_text() == (OLD if how == "chmod" else EDIT), (change, undone)


@pytest.mark.parametrize("letter", ["e", "é", "€"])
def test_a_long_name_is_changed_and_undone(host: Host, letter: str) -> None:
    """The temp file's name was cut by characters; a name is limited in bytes."""
    path = host.file(letter * (250 // len(letter.encode())))
    assert host.call("apply", apply_request(file_step(path)))["ok"]
    assert path.read_text() == NEW
    assert host.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"
    assert path.read_text() == OLD


def _odd(path: Path, how: str) -> None:
    path.unlink()
    if how == "link":
        path.symlink_to("/etc/hostname")
    elif how == "fifo":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(65 << 20)


@pytest.mark.parametrize("how", ["link", "fifo", "large"])
def test_one_odd_path_does_not_keep_the_others_from_going_back(host: Host, how: str) -> None:
    """An undo was refused for all of them, and with --overwrite too."""
    odd, other = host.file("odd"), host.file("other")
    host.call("apply", apply_request(file_step(odd), file_step(other)))
    _odd(odd, how)
    refused = host.call("undo", {"change": "change-1"})
    assert refused["code"] == "later_edit" and str(odd) in refused["error"], refused
    assert other.read_text() == NEW
    answer = host.call("undo", {"change": "change-1", "overwrite": [str(odd)]})
    assert answer["code"] == "undo_incomplete" and str(odd) in answer["error"], answer
    assert other.read_text() == OLD
    odd.unlink()
    again = host.call("undo", {"change": "change-1", "overwrite": [str(odd)]})
    assert again["status"] == "ROLLED_BACK" and odd.read_text() == OLD, again


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_what_cannot_be_put_back_is_known_before_anything_is_undone(host: Host, how: str) -> None:
    """It stopped the unit, put one file back, and left the other one new."""
    paths = [host.file("a", "old a\n"), host.file("b", "old b\n")]
    host.call("apply", apply_request(*map(file_step, paths)))
    blob = next(p for p in (host.state / "blobs").iterdir() if p.read_text() == "old a\n")
    blob.unlink() if how == "gone" else blob.write_text("old c\n")
    answer = host.call("undo", {"change": "change-1"})
    assert answer["code"] == "blob_damaged" and str(paths[0]) in answer["error"], answer
    assert "nothing was undone" in answer["error"]
    assert [path.read_text() for path in paths] == [NEW, NEW]
    change = json.loads((host.state / "journal" / "change-1.json").read_text())
    assert change["status"] == "OPEN"
    paths[0].write_text("old a\n")
    paths[0].chmod(0o640)
    assert host.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"
    assert paths[1].read_text() == "old b\n"


def _acl(path: Path) -> None:
    """Lets uid 1000 read it."""
    rows = [(1, 7, NOBODY), (2, 4, 1000), (4, 5, NOBODY), (16, 5, NOBODY), (32, 5, NOBODY)]
    raw = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    os.setxattr(path, "system.posix_acl_access", raw)


LATER: dict[str, Callable[[Path], object]] = {
    "mode": lambda path: path.chmod(0o770),
    "owner": lambda path: os.chown(path, 1000, -1),
    "group": lambda path: os.chown(path, -1, 1000),
    "attribute": lambda path: os.setxattr(path, "user.note", b"mine"),
    "ACL": _acl,
}


def _state(path: Path) -> tuple[object, ...]:
    info = path.stat()
    rows = sorted((name, os.getxattr(path, name)) for name in os.listxattr(path))
    return info.st_mode, info.st_uid, info.st_gid, rows


@pytest.mark.parametrize("how", LATER)
@pytest.mark.parametrize("what", ["file", "new file", "folder", "new folder"])
def test_a_later_mode_owner_or_attribute_is_kept_until_it_is_named(
    host: Host, what: str, how: str
) -> None:
    """A folder was put back whatever had become of it, and an attribute of a file was lost."""
    path, other = host.root / "thing", host.file("other")
    if what == "file":
        host.file("thing")
    elif what == "folder":
        path.mkdir(mode=0o711)
    if what != "new file" and path.exists():
        os.setxattr(path, "user.origin", b"theirs")
    before = _state(path) if path.exists() else None
    step: dict[str, object] = (
        file_step(path)
        if "file" in what
        else {"op": "directory", "path": str(path), "mode": "0755"}
    )
    host.call("apply", apply_request(step, file_step(other)))
    LATER[how](path)
    edited = _state(path)
    assert host.run(host.argv("status", "--verify")).returncode == 1
    answer = host.call("undo")
    assert answer["code"] == "later_edit" and f"{path}; nothing" in answer["error"], answer
    assert f"--overwrite {path}" in answer["remedy"]
    assert _state(path) == edited and other.read_text() == NEW
    assert host.call("undo", {"overwrite": [str(path)]})["status"] == "ROLLED_BACK"
    assert other.read_text() == OLD and (_state(path) if path.exists() else None) == before


def test_an_attribute_that_was_taken_away_is_a_later_edit(host: Host) -> None:
    path = host.root / "thing"
    path.mkdir()
    os.setxattr(path, "user.origin", b"theirs")
    step: dict[str, object] = {"op": "directory", "path": str(path), "mode": "0711"}
    host.call("apply", apply_request(step))
    os.removexattr(path, "user.origin")
    assert host.call("undo")["code"] == "later_edit"
    os.setxattr(path, "user.origin", b"theirs")
    assert host.call("undo")["status"] == "ROLLED_BACK"


def test_a_label_of_the_policy_is_no_edit(host: Host) -> None:
    """restorecon sets it anew, as a package's update does."""
    path = host.file("thing")
    host.call("apply", apply_request(file_step(path)))
    os.setxattr(path, "security.selinux", b"system_u:object_r:etc_t:s0")
    assert host.call("close", {"change": "change-1", "status": "COMMITTED", "reason": "x"})["ok"]
    assert host.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"


# The engine's secrets: root's alone on the host, compared there, and in nothing that is told.

CANARY = f"T0P-{os.urandom(6).hex()}"
OTHER = "0TH3R-S3CRET"
Step = dict[str, object]


def row(name: str = "HF_TOKEN", value: str = CANARY) -> dict[str, str]:
    return {"name": name, "value": value}


def step(path: Path, *rows: dict[str, str], quoted: bool = False, **more: object) -> Step:
    """The step that serve sends."""
    head = {"op": "file", "path": str(path), "mode": "0600", "secrets": list(rows)}
    return {**head, "quoted": quoted, **more}


def env_path(host: Host) -> Path:
    return host.root / "secrets.env"


def look(host: Host, *rows: dict[str, str], quoted: bool = False) -> dict[str, str]:
    """What `secrets look` says."""
    request = {"path": str(env_path(host)), "secrets": list(rows), "quoted": quoted}
    states: dict[str, str] = host.call("secrets look", request)["states"]
    return states


def lines(host: Host) -> list[str]:
    """The file behind its first line, which is random."""
    first, *rest = env_path(host).read_text().splitlines()
    assert re.match(r"# .*[0-9a-f]{32}\Z", first)
    return rest


def everything(folder: Path) -> dict[Path, str]:
    """Every file below the folder by its path."""
    return {p: p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file()}


def test_the_file_is_roots_alone_and_nothing_else_holds_a_value(host: Host) -> None:
    """Neither the answers nor the journal have it; the former value is in a blob, 0600 as well."""
    path = env_path(host)
    answers: list[object] = [
        host.call("apply", apply_request(step(path, row()))),
        host.call("apply", apply_request(step(path, row(value=OTHER)))),
        host.call("journal", {"change": "change-1"}),
    ]
    answers.append(host.run(host.argv("status")).stdout)
    assert (lines(host), mode(path)) == ([f"HF_TOKEN={OTHER}"], 0o600)
    for secret, holders in ((CANARY, 1), (OTHER, 1)):
        assert secret not in json.dumps(answers)
        found = [p for p, text in everything(host.root).items() if secret in text]
        assert len(found) == holders and all(mode(p) == 0o600 for p in found)
    assert mode(host.state) == mode(host.state / "blobs") == 0o700
    assert host.leftovers() == []


def test_no_digest_tells_a_value(host: Host) -> None:
    """A short secret could be guessed from a sha256: two files of the same value have two."""
    digests = set()
    for n in range(2):
        env_path(host).unlink(missing_ok=True)
        host.call("apply", apply_request(step(env_path(host), row()), name=f"change-{n}"))
        journal = host.call("journal", {"change": f"change-{n}"})["change"]
        digests.add(journal["steps"][0]["post"]["sha256"])
        host.call("close", {"change": f"change-{n}", "status": "COMMITTED", "reason": "x"})
    assert len(digests) == 2
    plain = f"HF_TOKEN={CANARY}\n".encode()
    assert hashlib.sha256(plain).hexdigest() not in digests


def test_a_second_apply_changes_nothing(host: Host) -> None:
    host.call("apply", apply_request(step(env_path(host), row())))
    before = env_path(host).read_bytes()
    again = host.call("apply", apply_request(step(env_path(host), row())))
    assert again["changed"] is False and env_path(host).read_bytes() == before


def test_undo_brings_the_former_value_and_tells_none(host: Host) -> None:
    path = env_path(host)
    path.write_text(f"HF_TOKEN={CANARY}\n")
    path.chmod(0o600)
    host.call("apply", apply_request(step(path, row(value=OTHER))))
    answer = host.call("undo", {"change": "change-1"})
    assert answer["status"] == "ROLLED_BACK" and path.read_text() == f"HF_TOKEN={CANARY}\n"
    assert CANARY not in json.dumps(answer) and OTHER not in json.dumps(answer)


def test_look_says_by_name_what_differs_and_changes_nothing(host: Host) -> None:
    assert look(host, row()) == {"HF_TOKEN": "new"}
    assert not env_path(host).exists()
    host.call("apply", apply_request(step(env_path(host), row("A"), row("B"), row("C"))))
    assert look(host, row("A"), row("B", OTHER)) == {
        "A": "unchanged", "B": "changed", "C": "removed"
    }  # fmt: skip


@pytest.mark.parametrize("quoted", [False, True])
def test_a_file_of_the_host_is_read_there(host: Host, quoted: bool) -> None:
    token = host.file("token", f"{CANARY}\n", mode=0o600)
    rows = {"name": "HF_TOKEN", "node_file": str(token)}
    host.call("apply", apply_request(step(env_path(host), rows, quoted=quoted)))
    assert lines(host) == [f"HF_TOKEN={CANARY}"]
    assert look(host, rows, quoted=quoted) == {"HF_TOKEN": "unchanged"}
    token.write_text(f"{OTHER}\r\n")
    assert look(host, rows, quoted=quoted) == {"HF_TOKEN": "changed"}


HOSTILE = ["it's", 'a "b" c', "$(touch CANARY)", "`touch CANARY`", "a\\b\\", "#no", "%n $HOME", "ü",
           " x ", '"q"', "a=b=c"]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("quoted", [False, True])
def test_any_line_comes_back(tmp_path: Path, value: str, quoted: bool) -> None:
    path = str(tmp_path / "secrets.env")
    rows = owner.parse_secrets([{"name": "A", "value": value}], "secrets")
    Path(path).write_bytes(owner.render_secrets(path, rows, quoted))
    assert owner.value_of(path, "A", quoted) == value
    if quoted:
        return
    # as docker's --env-file takes it: all behind the first `=`, as it is
    assert Path(path).read_text().splitlines()[1] == f"A={value}"


REFUSED: list[tuple[Any, str]] = [
    ({"name": "A", "value": f"{CANARY}\nx"}, "A: the value that was sent holds a newline"),
    ({"name": "A", "value": f"{CANARY}\x1b"}, "another control character"),
    ({"name": "A", "value": ""}, "A: the value that was sent is empty"),
    ({"name": "A", "value": CANARY * 1000}, "is longer than 8192 characters"),
    ({"name": API_KEY, "value": f"{CANARY} ü"}, "no HTTP header can hold"),
    ({"name": "A", "value": [CANARY]}, "secrets[0].value is not text"),
    ({"name": f"A {CANARY}", "value": "x"}, "secrets[0].name is not a variable's name"),
    ({"name": "A", "value": CANARY, "node_file": "/x"}, "one of them"),
    ({"name": "A"}, "one of them"),
    ({"name": "A", "node_file": "x/y"}, "not an absolute, normalised path"),
    ({"name": "A", "node_file": "/nowhere/token"}, "A: /nowhere/token cannot be read: No such"),
    ({"name": "A", "node_file": "/dev/null"}, "A: /dev/null is no plain file"),
    ({"name": "A", "node_file": "@open"}, "is open to every user; chmod o="),
    ({"name": "A", "node_file": "@link"}, "cannot be read: Too many levels of symbolic links"),
    ({"name": "A", "node_file": "@empty"}, "is empty"),
    ({"name": "A", "node_file": "@two"}, "holds a newline"),
    ({"name": "A", "node_file": "@binary"}, "is not UTF-8 text"),
]


@pytest.mark.parametrize(("wanted", "said"), REFUSED)
@pytest.mark.parametrize("verb", ["apply", "secrets look"])
def test_what_cannot_be_one_is_refused_without_the_value(
    host: Host, verb: str, wanted: dict[str, Any], said: str
) -> None:
    for name, raw, bits in (
        ("open", CANARY.encode(), 0o644), ("empty", b"\n", 0o600),
        ("two", f"{CANARY}\n{CANARY}".encode(), 0o600), ("binary", b"\xff\xfe", 0o600),
    ):  # fmt: skip
        (host.root / name).write_bytes(raw)
        (host.root / name).chmod(bits)
    (host.root / "link").symlink_to(host.root / "two")
    named = str(wanted.get("node_file", ""))
    if named.startswith("@"):
        wanted = {**wanted, "node_file": str(host.root / named[1:])}
    request: Any = {"path": str(env_path(host)), "secrets": [wanted], "quoted": False}
    if verb == "apply":
        request = apply_request(step(env_path(host), wanted))
    done = host.run(host.argv(verb), json.dumps(request))
    assert done.returncode == 1 and CANARY not in done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert said in f"{answer['error']}; {answer.get('remedy')}"
    assert not env_path(host).exists()


@pytest.mark.parametrize(
    "more", [{"content": "x"}, {"mode": "0640"}, {"secrets": [row("A"), row("A")]}]
)
def test_a_step_that_would_show_them_is_refused(host: Host, more: Step) -> None:
    request = apply_request({**step(env_path(host), row()), **more})
    answer = host.call("apply", request)
    assert answer["ok"] is False and CANARY not in json.dumps(answer)


def test_a_snapshot_has_the_names_alone(host: Host) -> None:
    """Also of a name that no pattern takes for a secret, and of a file that all may read."""
    host.call("apply", apply_request(step(env_path(host), row("PIN"))))
    assert host_files.file_state(str(env_path(host)))["content"] == "#\nPIN=***\n"
    env_path(host).chmod(0o644)
    assert host_files.file_state(str(env_path(host)))["content"] == "#\nPIN=***\n"


def test_no_process_shows_a_value_while_it_works(host: Host) -> None:
    """The verb reads its stdin: nothing of it is in argv, nor in the environment of the program."""
    seen = host.root / "seen"
    poll = (
        f"cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' '\\n' "
        f"| grep -c {shlex.quote(CANARY[:3] + '[-]' + CANARY[4:])} >> {shlex.quote(str(seen))}; "
        "bash -n $1"
    )
    checks = {"validate": ["sh", "-c", poll, "poll", "{tmp}"]}
    answer = host.call("apply", apply_request(step(env_path(host), row(), **checks)))
    assert answer["ok"] is True and seen.read_text() == "0\n"
    # the poll sees what stands in a command line
    done = subprocess.run(
        ["sh", "-c", f"{poll}; :", "poll", os.devnull, CANARY], check=False, capture_output=True
    )
    assert done.returncode == 0 and seen.read_text().splitlines()[-1] != "0"
