"""The lab as tests/system/lab has it: these tests of image and weights take minutes (not in CI)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.rehearsal import Lab, rehearsal


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two rehearsal hosts."""
    with rehearsal("--no-engine") as made:
        yield made
