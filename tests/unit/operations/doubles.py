"""Doubles of what operations talk to: a pyinfra host and state, and node's answers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from operations import rollback, run
from operations.run import StepFailed
from tests.plans.support.scenario import HEAD, WORKER

Answer = Callable[[str, str, dict[str, Any]], dict[str, Any]]


class FakeHost:
    """Stand-in for a pyinfra host: keeps what is logged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        """As pyinfra's Host.log."""
        self.lines.append(text)

    def log_styled(self, text: str, **style: object) -> None:
        """As pyinfra's Host.log_styled."""
        self.lines.append(text)


class FakeState:
    """Stand-in for pyinfra's State with the hosts of a rig."""

    def __init__(self, *names: str) -> None:
        self.hosts = {name: FakeHost(name) for name in names or (HEAD, WORKER)}
        self.inventory = SimpleNamespace(get_host=self.hosts.__getitem__)
        self.config = SimpleNamespace(DIFF=False)

    def said(self) -> str:
        """All that was logged on any host."""
        return "\n".join(line for host in self.hosts.values() for line in host.lines)


class Node:
    """Stand-in for node on all hosts: records calls; `answer` gives the document or raises."""

    def __init__(self, patch: pytest.MonkeyPatch, answer: Answer | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.requests: list[dict[str, Any]] = []
        self.answer = answer or (lambda host, verb, request: {"ok": True, "changed": True})
        for module in (run, rollback):
            patch.setattr(module, "call", self._call)

    def _call(
        self, state: FakeState, host: FakeHost, verb: str, request: dict[str, Any], *_: object
    ) -> dict[str, Any]:
        self.calls.append((host.name, verb))
        self.requests.append(request)
        return self.answer(host.name, verb, request)


def failing(name: str, verb: str, code: str = "") -> Answer:
    """An answer that fails one verb on one host."""

    def answer(host: str, asked: str, request: dict[str, Any]) -> dict[str, Any]:
        if (host, asked) == (name, verb):
            raise StepFailed(f"{host}: {verb}: stand-in failure", code)
        return {"ok": True, "changed": True, "status": "ROLLED_BACK", "change": {"steps": []}}

    return answer
