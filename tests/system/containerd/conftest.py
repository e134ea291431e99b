"""Three booted hosts: test1's docker on overlay2, the others' on the containerd image store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.rehearsal import Lab, rehearsal


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The hosts, without the engine's image."""
    with rehearsal("--hosts", "3", "--containerd") as made:
        yield made
