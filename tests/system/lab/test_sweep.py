"""The sweep in small, with a fixed seed: a drop-in on two hosts, interrupted in four ways.

`make chaos` is the large one.
"""

from __future__ import annotations

import pytest

from tests.system.engine.steps import head
from tests.system.lease.rigs import OnLab
from tests.system.rehearsal import Lab
from tests.system.sweep.blows import MISSED
from tests.system.sweep.cases import Unit
from tests.system.sweep.cycle import run
from tests.system.sweep.plan import cell

KINDS = ("operator killed", "node killed", "connection killed", "two operators")


@pytest.fixture(scope="module")
def unit(lab: Lab) -> Unit:
    """The case, which is measured once."""
    return Unit(OnLab(lab, "inventory/lab.py", tuple(lab.hosts), head(lab)))


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_one_more_run_after_an_interrupt(unit: Unit, number: int) -> None:
    row = run(unit, cell(21, "unit", number, KINDS))
    print(f"TABLE | unit | {row.cell.kind} | {row.at_s:.1f} s | {row.operator} | {row.status} |")
    assert row.hit != MISSED, "the run was over before its moment, three times"
