"""The rehearsal tower: one host with the real vLLM in a venv, no docker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.rehearsal import rehearsal
from tests.system.venv.steps import Tower


@pytest.fixture(scope="session")
def tower() -> Iterator[Tower]:
    """The tower, booted; nothing was served on it when it is made anew."""
    with rehearsal("--tower"):
        yield Tower()


@pytest.fixture(scope="session")
def serving(tower: Tower) -> Tower:
    """The tower after a `serve` in the default profile."""
    done = tower.deploy("serve")
    assert done.rc == 0, done.text
    return tower
