"""serve on a rig that runs and gives no answer: hung, or busy with others."""

from __future__ import annotations

import dataclasses

import pytest

from deploys.common.snapshot_view import units_in
from deploys.procedures.engine import installed
from facts.endpoint.completion import KEY_VARIABLE, Answer, Endpoint
from facts.endpoint.probe import probe
from schema.desired.plan import UNIT
from schema.observed.machine import Identity
from tests.plans.support.engine_double import EngineDouble, Reply
from tests.plans.support.scenario import HEAD, tiny_plan
from tests.plans.support.scenario import serving as serving_rig

LATE = Answer(False, "ReadTimeout", late=True)
REFUSED = Answer(False, "ConnectError")


@pytest.mark.parametrize(
    ("answer", "made", "restarts"),
    [
        (LATE, 120.0, False),  # a queue: every client would be cut off
        (LATE, 0.0, True),  # nothing moves: it hangs
        (LATE, None, True),  # it does not even say
        (REFUSED, 120.0, True),
        (Answer(False, "HTTP 500", final=True), 120.0, True),
        (Answer(False, "401", final=True, alive=True), None, False),
    ],
)
def test_only_a_hang_is_restarted(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, made: float | None, restarts: bool
) -> None:
    plan = tiny_plan()
    monkeypatch.setattr(installed, "_made_meanwhile", lambda _: made)
    seen = serving_rig(plan)
    identity = seen[HEAD].identity
    assert isinstance(identity, Identity)
    up = identity.clock_unix_s - (units_in(seen[HEAD])[UNIT].since_unix_s or 0)
    expect = plan.recipe.expect.model_copy(update={"start_budget_s": int(up) - 1})
    recipe = plan.recipe.model_copy(update={"expect": expect})
    plan = dataclasses.replace(plan, recipe=recipe)
    assert installed._too_late(plan, seen, answer) is restarts


def test_the_doctors_look_takes_the_key_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a guarded engine would be down for the doctor, and up for verify."""
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    with EngineDouble(Reply) as engine:
        probe(Endpoint(engine.url, "tiny"))
    assert len(engine.keys) > 2 and set(engine.keys) == {"Bearer s3cret"}
