"""Which weights loader is told to be faster: by rounds, never by one."""

from __future__ import annotations

import pytest

from deploys.procedures.measure.loaders import AS_IS, told

SLOW = [84.0, 83.1, 85.2, 84.4, 83.7]


@pytest.mark.parametrize(
    ("others", "last"),
    [
        # the fastest of those that the rounds show to be faster
        ({"runai_streamer": [41.0, 40.2, 42.0, 40.9, 41.3], "fastsafetensors": [30.0] * 5},
         "for catalog/recipes/big.yaml: vllm_serve: load_format: fastsafetensors"),
        ({"auto": [83.9, 84.2, 83.0, 85.0, 84.1]}, "within noise"),
        ({"auto": [140.0, 139.0, 141.5, 140.2, 139.9]}, "worse"),
        # a pair is no proof
        ({"auto": [30.0]}, "too few rounds to say"),
        ({}, "84.0 s to the first token (83.1 to 85.2)"),
    ],
)  # fmt: skip
def test_the_recipe_is_told_what_is_proven(others: dict[str, list[float]], last: str) -> None:
    lines = told({AS_IS: SLOW, **others}, "big")
    assert lines[0].startswith("as the recipe says: 84.0 s") and lines[-1].endswith(last), lines
    assert len(lines) == 1 + len(others) + ("load_format" in last)
