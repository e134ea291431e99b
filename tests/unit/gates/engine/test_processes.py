"""Ids of one container, whole and as docker shortens them."""

from __future__ import annotations

import pytest

from node.rules.ownership import same_container
from tests.unit.builders import engine_parts as e
from tests.unit.builders import host_parts as h


@pytest.mark.parametrize(("one", "other", "same"), [
    (e.FOREIGN, e.FOREIGN[:12], True),
    (e.FOREIGN[:12], e.FOREIGN, True),
    (e.FOREIGN, h.OURS, False),
    # A process without a container is of none; eleven digits are no id that docker gives.
    ("", e.FOREIGN, False),
    (e.FOREIGN[:11], e.FOREIGN, False),
])  # fmt: skip
def test_ids_of_one_container(one: str, other: str, same: bool) -> None:
    assert same_container(one, other) is same
