"""The lab with the real vLLM on both hosts, for the replays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rehearsal import Lab, rehearsal


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The lab with the engine's image loaded on both hosts."""
    with rehearsal() as made:
        yield made


@pytest.fixture(scope="session")
def serving(lab: Lab) -> Lab:
    """The lab after a `serve` in the default profile."""
    done = lab.pyinfra("serve")
    assert done.rc == 0, done.text
    return lab
