"""A twin of inventory/spark.py: incidents in a row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from facts.endpoint import ask
from lab import rehearsal
from lab.incidents import Rig
from tests.system.rehearsal import Lab
from tests.system.rehearse.conftest import Twins
from tests.system.rehearse.in_a_row import codes_of, dealt_and_mended


@pytest.fixture(scope="module")
def pair(twin_of: Twins) -> Iterator[tuple[Lab, Rig]]:
    """The twin, which serves."""
    with twin_of("inventory/spark.py") as made:
        yield made


def test_the_twin_is_the_rig_by_its_names(pair: tuple[Lab, Rig]) -> None:
    lab, twin = pair
    assert twin.names == ("spark1", "spark2")
    for name in twin.names:
        assert lab.ssh(name, "hostname") == name
        assert lab.ssh(name, "id -un milo") == "milo"
        assert lab.ssh(name, "sudo ls /home/milo/models/DeepSeek-V4-Flash/config.json")
    assert ask(rehearsal.endpoint(twin), 30).ok
    found = rehearsal.doctor(twin)
    assert [row for row in found if row["severity"] == "block"] == []


@pytest.mark.parametrize("code", codes_of("pair", "container", "pair with patches and modules"))
def test_it_is_named_mended_and_judged(pair: tuple[Lab, Rig], code: str) -> None:
    dealt_and_mended(*pair, code)
