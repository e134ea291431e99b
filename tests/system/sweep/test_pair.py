"""serve, restart and rollback on the pair with the real vLLM, interrupted at random moments."""

from __future__ import annotations

import pytest

from tests.system.lease.rigs import OnLab
from tests.system.sweep.cycle import (
    Case,
    Cell,
    OnPair,
    Profiles,
    Restart,
    Rollback,
    Serve,
    cells,
    run,
)

CASES: dict[str, type[OnPair]] = {"serve": Serve, "restart": Restart, "rollback": Rollback}


@pytest.fixture(scope="module")
def made(pair: OnLab) -> dict[str, Case]:
    """The cases, which serve one profile after the other."""
    served = Profiles()
    return {name: kind(pair, served) for name, kind in CASES.items()}


@pytest.mark.parametrize(
    "cell", [cell for name in CASES for cell in cells(name)], ids=lambda cell: cell.name
)
def test_one_more_run(made: dict[str, Case], cell: Cell) -> None:
    run(made[cell.deploy], cell)
