"""A backup and a restore under every Python from 3.8 to 3.13 that this machine has."""

from __future__ import annotations

import shutil

import pytest

from tests.node.test_pythons import FOUND
from tests.node.trees import Engine, picture


@pytest.mark.parametrize("version", FOUND)
def test_backup_verify_restore_undo(engine: Engine, version: str) -> None:
    engine.host.python = FOUND[version]
    before = picture(engine.tree)
    backup = engine.verified()
    shutil.rmtree(engine.package)
    assert engine.restore()["backup"] == backup and picture(engine.tree) == before
    assert engine.host.call("undo")["status"] == "ROLLED_BACK" and not engine.package.exists()
    assert engine.ask("prune", {"keep": 1, "displaced": True})["displaced_removed"]
