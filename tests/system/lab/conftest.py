"""The lab without the engine's image: two booted hosts, their links, their docker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.rehearsal import Lab, rehearsal


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two rehearsal hosts."""
    with rehearsal("--no-engine") as made:
        yield made
