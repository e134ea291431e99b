"""A key of an earlier release is refused in one line that says what to do instead."""

from __future__ import annotations

import pytest

from schema.core import SpecError
from schema.keys import REMOVED, RUNBOOKS, taken
from schema.load import host_data

ALL = [kind for kinds in RUNBOOKS.values() for kind in kinds]


@pytest.mark.parametrize("key", sorted(REMOVED))
def test_it_says_what_to_do_instead(key: str) -> None:
    assert not [kind.__name__ for kind in ALL if key in taken(kind)]
    with pytest.raises(SpecError) as caught:
        host_data("spark1", {key: True}, {key: "--data"}, ALL[0])
    assert f"--data: host spark1: {key}: {REMOVED[key]}" in caught.value.problems
