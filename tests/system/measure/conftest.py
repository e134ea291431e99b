"""The lab of the engine's tests, the same list of what was measured, a folder for documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploys.plans.measure import VARIABLE
from lab import core
from tests.system.engine.conftest import lab, pytest_terminal_summary, serving

__all__ = ["kept", "lab", "pytest_terminal_summary", "serving"]


@pytest.fixture(scope="session", autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the operator's documents go."""
    folder = tmp_path_factory.mktemp("measurements")
    os.environ[VARIABLE] = str(folder)
    yield folder / core.TESTS.name
    del os.environ[VARIABLE]
