"""Which file it is: by handle, by time of birth, or by the inode alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.change.tree_step import inspect_tree
from node.files import identity


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
    assert inspect_tree(str(tmp_path / "moved")) == before != inspect_tree(str(other))
