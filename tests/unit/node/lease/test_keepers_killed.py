"""Two keepers on loopback, one of which is killed before each of its acts."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import pytest

from tests.unit.node.support.keepers import BACK, HEAD, WORKER, Pair, is_back

ACTS = ("promise", "stop", "undo", "prove")


def killed(name: str, act: str, pair: Pair) -> None:
    """A power cut, or a kill: the next keeper of that host goes on where it was."""
    dying = pair.keep(name, act)
    pair.keep(WORKER if name == HEAD else HEAD)
    assert dying.wait(30) == -9
    dying.communicate()
    pair.keep(name)
    assert pair.ends() == BACK and is_back(pair)


PLAYS = {f"{act}-{name}": partial(killed, name, act) for act in ACTS for name in (HEAD, WORKER)}


@pytest.mark.parametrize("name", PLAYS)
def test_a_keeper_that_is_killed_in_each_phase(played: dict[str, Future[None]], name: str) -> None:
    played[name].result()
