"""Which file it is: by handle, by time of birth, or by the inode alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.change.tree_step import inspect_tree
from node.files import identity
from node.venv import in_place_step


@pytest.mark.parametrize("gone", [[], ["_handle"], ["_handle", "_birth"]])
def test_a_folder_keeps_its_identity_over_a_rename_and_another_has_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: list[str]
) -> None:
    for name in gone:
        monkeypatch.setattr(identity, name, lambda _: None)
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    before = inspect_tree(str(one))
    words = [None if len(gone) == 2 else ["handle", "birth"][len(gone)]]
    assert [(before["mark"] or "").split(" ")[0] or None] == words
    one.rename(tmp_path / "moved")
    assert identity.same(inspect_tree(str(tmp_path / "moved")), before)
    assert not identity.same(inspect_tree(str(other)), before)
    # the same number again, of another one
    assert identity.same({**before, "mark": "another"}, before) is False
    # an older journal has no mark
    assert identity.same(before, {"kind": "directory", "ino": before["ino"]})


def test_an_undo_that_an_older_program_began_knows_its_unpacked_tree(tmp_path: Path) -> None:
    """It wrote the inode alone."""
    new = tmp_path / "new"
    new.mkdir()
    ready = tmp_path / in_place_step.READY
    entry = {"path": str(new), "work": str(tmp_path)}
    assert not in_place_step._is_ready(entry, str(new))
    ready.write_text(str(new.stat().st_ino))
    assert in_place_step._is_ready(entry, str(new))
    ready.write_text(json.dumps({**inspect_tree(str(new)), "mark": "another"}))
    assert not in_place_step._is_ready(entry, str(new))
