"""A twin of inventory/spark.py in the tests' place, which serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.rehearsal import incident
from lab.rehearsal.incidents.table import Rig
from tests.system.rehearsal import Lab, rehearsal


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The twin, booted."""
    with rehearsal("inventory/spark.py", verb="rehearse") as made:
        yield made


@pytest.fixture(scope="session")
def twin(lab: Lab) -> Rig:
    """The twin after its first serve."""
    rig = incident.rig_of(lab.settings)
    done = lab.pyinfra("serve", inventory=rig.inventory)
    assert done.rc == 0, done.text
    return rig
