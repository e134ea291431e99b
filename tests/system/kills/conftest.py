"""The rigs whose operators are killed: the pair, the tower, a VM; one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.kills.cut import ROWS, SEED, table
from tests.system.rehearsal import Lab, rehearsal
from tests.system.venv.steps import Tower
from tests.system.vm.conftest import boot, disk

__all__ = ["boot", "disk"]


def pytest_report_header() -> str:
    """The seed, also of a run that is cut off."""
    return f"kills: RIGBOOK_KILLS_SEED={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table, whatever passed."""
    for line in table() if ROWS else ():
        terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def pair() -> Iterator[Lab]:
    """Two hosts that serve, with the real vLLM."""
    with rehearsal() as made:
        done = made.pyinfra("serve")
        assert done.rc == 0, done.text
        yield made


@pytest.fixture(scope="module")
def tower() -> Iterator[Tower]:
    """The tower, which serves from a venv with the real vLLM."""
    with rehearsal("--tower"):
        made = Tower()
        done = made.deploy("serve")
        assert done.rc == 0, done.text
        yield made
