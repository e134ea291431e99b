"""unit, weights, image and libvgpu on hosts without the engine, interrupted at random moments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.lease.rigs import OnLab
from tests.system.sweep.cycle import Case, Cell, Image, LabCase, Libvgpu, Unit, Weights, cells, run
from tests.unit.node.support.libs import folder

CASES: dict[str, type[LabCase]] = {"unit": Unit, "weights": Weights, "image": Image}


@pytest.fixture(scope="module")
def made(hosts: OnLab) -> Iterator[dict[str, Case]]:
    """The cases, each of which is measured once."""
    with folder() as built:
        yield {
            **{name: kind(hosts) for name, kind in CASES.items()},
            "libvgpu": Libvgpu(hosts, built),
        }


@pytest.mark.parametrize(
    "cell",
    [cell for name in (*CASES, "libvgpu") for cell in cells(name)],
    ids=lambda cell: cell.name,
)
def test_one_more_run(made: dict[str, Case], cell: Cell) -> None:
    run(made[cell.deploy], cell)
