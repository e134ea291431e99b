"""A long verb: the operator sees how far it is, and its failure is the caller's."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from operations.change import progress
from operations.change.node_call import StepFailed


class Told:
    """A stand-in of a host, which keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


def run(monkeypatch: pytest.MonkeyPatch, told: Told, answer: Any) -> dict[str, Any]:
    """A verb that takes five looks."""

    def call(*_: Any) -> Any:
        gevent.sleep(0.1)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(progress, "call", call)
    monkeypatch.setattr(progress, "REPORT_S", 0.02)
    host: Any = told
    state: Any = None
    return progress.call_with_progress(state, host, "x", {}, 1, lambda: ["half"])


def test_the_answer_comes_and_the_looks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    assert run(monkeypatch, told, {"ok": True}) == {"ok": True}
    assert set(told.lines) == {"half"} and len(told.lines) >= 1


def test_a_failure_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StepFailed, match="pip ended with 1"):
        run(monkeypatch, Told(), StepFailed("pip ended with 1", "install_failed"))
