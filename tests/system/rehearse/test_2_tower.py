"""A twin of inventory/tower.py: what breaks in a venv, in a row."""

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
def tower(twin_of: Twins) -> Iterator[tuple[Lab, Rig]]:
    """The twin, which serves."""
    with twin_of("inventory/tower.py") as made:
        yield made


def test_the_twin_is_the_rig_by_its_names(tower: tuple[Lab, Rig]) -> None:
    lab, twin = tower
    assert twin.names == ("tower",) and lab.ssh("tower", "hostname") == "tower"
    assert lab.ssh("tower", "sudo ls /opt/genesis/venv/bin/vllm")
    assert ask(rehearsal.endpoint(twin), 30).ok
    found = rehearsal.doctor(twin)
    assert [row for row in found if row["severity"] == "block"] == []


@pytest.mark.parametrize("code", codes_of("venv"))
def test_it_is_named_mended_and_judged(tower: tuple[Lab, Rig], code: str) -> None:
    dealt_and_mended(*tower, code)
