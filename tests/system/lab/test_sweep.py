"""Cells of the sweep with a fixed seed, one of each interrupt; `make chaos` has the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.engine.steps import head
from tests.system.lab.support import moving as m
from tests.system.lease.rigs import OnLab
from tests.system.rehearsal import Lab
from tests.system.sweep.blows import MISSED
from tests.system.sweep.cases import Unit
from tests.system.sweep.cycle import Case, run
from tests.system.sweep.plan import DEPLOYS, Cell, cells

SEED = 2611
CLEAR = "rm -f /etc/systemd/system/ssh.service.d/50-trial.conf; systemctl daemon-reload"


@pytest.fixture(scope="module")
def unit(lab: Lab) -> Iterator[Case]:
    """The deploy of a drop-in; afterwards it and its changes are gone."""
    rig = OnLab(lab, "inventory/lab.py", tuple(lab.hosts), head(lab))
    yield Unit(rig)
    for name in rig.names:
        rig.root(name, CLEAR)
    m.clear(lab)


@pytest.mark.parametrize(
    "cell", cells("unit", "unit", len(DEPLOYS["unit"]), SEED), ids=lambda cell: cell.kind
)
def test_one_more_run(unit: Case, cell: Cell) -> None:
    assert run(unit, cell).hit != MISSED
