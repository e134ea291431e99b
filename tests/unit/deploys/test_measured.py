"""What an engine is asked with while it is measured."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from deploys.procedures.engine.measured import without_thoughts
from facts.endpoint.completion import Endpoint
from schema.inputs.load import recipe
from tests.unit.builders.spark_rig import ROOT


@pytest.mark.parametrize(
    ("defaults", "own", "sent"),
    [
        ({"thinking": True}, {}, {"thinking": False}),
        ({"enable_thinking": True}, {"x": 1}, {"x": 1, "enable_thinking": False}),
        ({"thinking": False}, {}, {}),
        (None, {"thinking": True}, {"thinking": False}),
        ({"thinking": True}, {"thinking": False}, {"thinking": False}),
        ({"greeting": "hello"}, {"x": 1}, {"x": 1}),
        (None, {}, {}),
    ],
)
def test_thoughts_are_off_where_the_recipe_turns_them_on(
    defaults: JsonValue, own: dict[str, int], sent: dict[str, object]
) -> None:
    """The seed measured its baselines so."""
    loaded = recipe("deepseek-v4-flash", ROOT)
    flags = {**loaded.vllm_serve, "default_chat_template_kwargs": defaults}
    where = Endpoint("http://127.0.0.1", "m", chat_template_kwargs=tuple(own.items()))
    found = without_thoughts(loaded.model_copy(update={"vllm_serve": flags}), where)
    assert dict(found.chat_template_kwargs) == sent


def test_the_seeds_baselines_say_how_they_were_measured() -> None:
    """256 tokens an answer, 400 in the balanced profile."""
    rows = recipe("deepseek-v4-flash", ROOT).expect.baselines
    assert len(rows) == 13
    assert {(row.profile, row.tokens) for row in rows} == {
        ("latency", 256), ("throughput", 256), ("balanced", 400),
    }  # fmt: skip
