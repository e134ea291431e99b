"""The runs of a module's TABLE (tests/plans/support/scenario.py), all started at once."""

from __future__ import annotations

import pytest

from tests.plans.support.scenario import Runs


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest) -> Runs:
    """Each run of the module by its name."""
    return Runs({name: scenario for name, (scenario, _) in request.module.TABLE.items()})
