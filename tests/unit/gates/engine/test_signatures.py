"""What a failed start's log means: each signature by a recorded line, and the action it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gates.engine.failure_signatures import action, cause_of, from_log, signature
from gates.engine.signature_table import SIGNATURES
from node.snapshot import unit_log
from tests.unit.builders.host_parts import unit

GOOD: dict[str, list[str]] = yaml.safe_load(
    Path(__file__).with_name("good_starts.yaml").read_text()
)
TABLE = yaml.safe_load(Path(__file__).with_name("signatures.yaml").read_text())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row["source"]))
def test_a_recorded_line_has_its_meaning(row: dict[str, Any]) -> None:
    assert row["means"] in (from_log([row["line"]]) or "")


def test_every_signature_has_a_recorded_line() -> None:
    assert len(SIGNATURES) >= 25
    assert {signature([row["line"]]) for row in TABLE} == set(SIGNATURES)


def test_the_root_cause_decides_before_what_followed() -> None:
    """The peer's goodbye stands in each log of a start that failed."""
    lost = "[c10d] sendBytes failed: Connection reset by peer, gloo"
    full = "root cause: ValueError: No available memory for the cache blocks. (vllm/v1/core.py:1)"
    assert "KV cache" in cause_of(unit(errors=(lost, full)))
    assert action(unit(errors=(full,))).startswith("raise gpu_memory_utilization")
    assert "lost its peer" in cause_of(unit(errors=(lost,))) and action(unit(errors=(lost,))) == ""


@pytest.mark.parametrize("source", GOOD)
def test_a_good_start_has_none(source: str) -> None:
    """Neither any line of it, nor all of them, nor what a snapshot takes for an error."""
    lines = GOOD[source]
    wrong = [line for line in lines if signature([line])]
    assert wrong == [] and signature(lines) is None
    assert signature(unit_log.with_root_cause(lines)) is None
    assert signature(["WARNING 03-02 19:48:25 [topk.py:1] error 8021"]) is None
