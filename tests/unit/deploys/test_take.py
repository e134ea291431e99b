"""Ours is started only where the former engine has left port and memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deploys.procedures.adopt import take
from gates.core.codes import violation
from operations.change.node_call import StepFailed

HELD = violation(
    "port-taken", "lab1", "port 8000 of lab1 is taken", evidence="pid 7", remedy="end it"
)
NOTHING: Any = SimpleNamespace(plan=None)


def looks(monkeypatch: pytest.MonkeyPatch, *found: list[Any]) -> list[float]:
    """Has the gates say these in turn; gives the seconds that were waited."""
    waited: list[float] = []
    rows = list(found)
    monkeypatch.setattr(take, "observe", lambda *_, **__: {})
    monkeypatch.setattr(take, "check", lambda *_: rows.pop(0) if len(rows) > 1 else rows[0])
    monkeypatch.setattr(take, "gevent", SimpleNamespace(sleep=waited.append))
    monkeypatch.setattr(take, "refusal_line", lambda left: f"nothing was changed: {left[0].code}")
    clock = SimpleNamespace(monotonic=lambda: float(100 + sum(waited)))
    monkeypatch.setattr(take, "time", clock)
    return waited


def test_a_port_that_is_free_a_moment_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = looks(monkeypatch, [HELD], [HELD], [])
    assert take._room(NOTHING, ((), None), take.ROOM_S) == "port and memory are free after 4 s"
    assert len(waited) == 2


def test_one_that_stays_taken_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, [HELD])
    with pytest.raises(StepFailed, match=r"after 62 s: port-taken"):
        take._room(NOTHING, ((), None), take.ROOM_S)


def test_a_waived_finding_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    short = violation("memory-short", "lab1", "short", evidence="1 GiB", remedy="x")
    looks(monkeypatch, [short])
    assert "are free" in take._room(NOTHING, (("memory-short",), "known"), take.ROOM_S)


@pytest.mark.parametrize(("argv", "value"), [
    (("vllm", "serve", "/m", "--served-model-name", "tiny", "other"), "tiny"),
    (("vllm", "serve", "/m", "--served_model_name=tiny"), "tiny"),
    (("vllm", "serve", "/m", "--served-model-name"), None), (("vllm", "serve", "/m"), None),
])  # fmt: skip
def test_the_name_that_the_former_engine_answers_to(
    argv: tuple[str, ...], value: str | None
) -> None:
    assert take._option(argv, "--served-model-name") == value
