"""What somebody else does to a path while a change is made."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step

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
