"""upgrade on the tower, interrupted at random moments: to the other of two real versions, and
back."""

from __future__ import annotations

import pytest

from tests.system.lease.rigs import OnLab
from tests.system.sweep.cycle import Case, Cell, Upgrade, cells, run


@pytest.fixture(scope="module")
def made(tower: OnLab) -> Case:
    """The case, which is measured once."""
    return Upgrade(tower)


@pytest.mark.parametrize("cell", cells("upgrade"), ids=lambda cell: cell.name)
def test_one_more_run(made: Case, cell: Cell) -> None:
    run(made, cell)
