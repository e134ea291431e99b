"""The rigs whose deploys are interrupted, one after the other: two hosts without an engine, the
pair, the tower, a VM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.engine.steps import head
from tests.system.lease.rigs import OnLab
from tests.system.rehearsal import rehearsal
from tests.system.sweep import cycle
from tests.system.sweep.cycle import SEED
from tests.system.venv.steps import INVENTORY, Tower
from tests.system.vm.conftest import boot, disk

__all__ = ["boot", "disk"]


def pytest_report_header() -> str:
    """The seed, also of a run that is cut off."""
    return f"sweep: RIGBOOK_CHAOS_SEED={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table, whatever passed."""
    cycle.show(terminalreporter)


@pytest.fixture(scope="module")
def hosts() -> Iterator[OnLab]:
    """Two hosts without the engine's image."""
    with rehearsal("--no-engine") as made:
        yield OnLab(made, "inventory/lab.py", tuple(made.hosts), head(made))


@pytest.fixture(scope="module")
def pair() -> Iterator[OnLab]:
    """Two hosts that serve, with the real vLLM."""
    with rehearsal() as made:
        done = made.pyinfra("serve", "--data", "profile=balanced")
        assert done.rc == 0, done.text
        yield OnLab(made, "inventory/lab.py", tuple(made.hosts), head(made))


@pytest.fixture(scope="module")
def tower() -> Iterator[OnLab]:
    """The tower, which serves from a venv with the real vLLM."""
    with rehearsal("--tower"):
        made = Tower()
        done = made.deploy("serve")
        assert done.rc == 0, done.text
        yield OnLab(made, INVENTORY, (made.name,), made.endpoint)
