"""Two keepers on loopback, one of which is killed before each of its acts."""

from __future__ import annotations

import pytest

from tests.unit.node.support.keepers import BACK, HEAD, WORKER, Pair, is_back

ACTS = ("promise", "stop", "undo", "prove")


@pytest.mark.parametrize("name", [HEAD, WORKER])
@pytest.mark.parametrize("act", ACTS)
def test_a_keeper_that_is_killed_in_each_phase(pair: Pair, name: str, act: str) -> None:
    """A power cut, or a kill: the next keeper of that host goes on where it was."""
    dying = pair.keep(name, act)
    pair.keep(WORKER if name == HEAD else HEAD)
    assert dying.wait(30) == -9
    dying.communicate()
    pair.keep(name)
    assert pair.ends() == BACK and is_back(pair)
