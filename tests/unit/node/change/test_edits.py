"""What somebody else does to a path while a change is made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step

EDIT = "edited by hand"


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
