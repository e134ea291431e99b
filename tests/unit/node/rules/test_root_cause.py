"""The root cause of a failed start, from logs that people have posted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from node.rules import root_cause
from node.snapshot import unit_log

TRACES = yaml.safe_load(Path(__file__).with_name("traces.yaml").read_text())


@pytest.mark.parametrize("row", TRACES, ids=lambda row: str(row["source"]))
def test_the_first_exception_is_told_with_vllms_frame(row: dict[str, Any]) -> None:
    found = root_cause.find(row["log"].splitlines())
    assert found is not None and row["says"] in found.text
    assert found.place == row["place"]
    assert found.line() == f"root cause: {found.text} ({found.place})"


@pytest.mark.parametrize("lines", [
    [], ["INFO 03-02 19:48:25 [api_server.py:1044] loading", "Error: not a trace"],
    ["Traceback (most recent call last):", '  File "/x.py", line 1, in y'],
])  # fmt: skip
def test_a_log_without_an_exception_has_none(lines: list[str]) -> None:
    assert root_cause.find(lines) is None


def test_a_snapshot_tells_the_last_starts_root_cause_first() -> None:
    """An earlier start's is not this one's, and a secret in it is masked."""
    start = "INFO 03-02 19:48:25 [api_server.py:1043] vLLM API server version 0.32.0"
    old, new = TRACES[1]["log"].splitlines(), TRACES[0]["log"].splitlines()
    first, *others = unit_log.with_root_cause([start, *old, start, *new])
    assert first.startswith("root cause: ValueError: No available memory") and others
    leak = ["Traceback (most recent call last):", '  File "/a/vllm/x.py", line 1, in y',
            "ValueError: --api-key sk-123 is not valid"]  # fmt: skip
    assert "sk-123" not in unit_log.with_root_cause(leak)[0]
    assert unit_log.with_root_cause(["error: flag"]) == ["error: flag"]
