"""The lab without the engine's image: two booted hosts, their links, their docker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.lab.support import moving as m
from tests.system.rehearsal import Lab, rehearsal

MB = 1_000_000


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two rehearsal hosts."""
    with rehearsal("--no-engine") as made:
        yield made


@pytest.fixture
def small(lab: Lab) -> Iterator[Lab]:
    """test1 has an image of two layers, test2 has none of it."""
    m.clear(lab)
    m.make_image(lab, "test1", 8 * MB)
    m.add_layer(lab, "test1", MB)
    yield lab
    m.clear(lab)
