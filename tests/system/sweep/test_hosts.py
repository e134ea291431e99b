"""unit, weights and image on two hosts without the engine, interrupted at random moments."""

from __future__ import annotations

import pytest

from tests.system.lease.rigs import OnLab
from tests.system.sweep.cases import Image, Unit, Weights
from tests.system.sweep.cycle import Case, run
from tests.system.sweep.plan import Cell, cells

CASES = {"unit": Unit, "weights": Weights, "image": Image}


@pytest.fixture(scope="module")
def made(hosts: OnLab) -> dict[str, Case]:
    """The cases, each of which is measured once."""
    return {name: kind(hosts) for name, kind in CASES.items()}


@pytest.mark.parametrize(
    "cell", [cell for name in CASES for cell in cells(name)], ids=lambda cell: cell.name
)
def test_one_more_run(made: dict[str, Case], cell: Cell) -> None:
    run(made[cell.deploy], cell)
