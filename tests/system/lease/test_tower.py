"""12 losses in the middle of an upgrade of the tower, from one real version to the other."""

from __future__ import annotations

import pytest

from tests.system.lease.rigs import OnLab, cells, run
from tests.system.venv.steps import VENV

VERSIONS = ("0.31.0", "0.32.0")


@pytest.mark.parametrize("loss", cells("upgrade"))
def test_upgrade(tower: OnLab, loss: str) -> None:
    (name,) = tower.names
    was = tower.root(name, f"readlink {VENV}").strip().rpartition("/")[2]
    wanted = next(version for version in VERSIONS if version != was)
    row = run(tower, "upgrade", loss, f"version={wanted}")
    now = tower.root(name, f"readlink {VENV}").strip().rpartition("/")[2]
    assert now == (wanted if row.status == "COMMITTED" else was), row
