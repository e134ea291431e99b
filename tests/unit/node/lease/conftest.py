"""Two hosts on loopback with an open change under a lease."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.node.support.keepers import Pair

AT_ONCE = 4


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pyz: Path
) -> Iterator[dict[str, Future[None]]]:
    """The module's PLAYS by name, each on a pair of its own: they wait for leases to run out, so
    a few run at once.
    """

    def play(name: str) -> None:
        pair = Pair.made(tmp_path_factory.mktemp("pair"), pyz)
        try:
            request.module.PLAYS[name](pair)
        finally:
            pair.close()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(play, name) for name in request.module.PLAYS}
