"""What somebody else does to a path while a change is made."""

from __future__ import annotations

import json

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
