"""The wait for a next boot: a host that goes down in mid-answer does not stop the waiting."""

from __future__ import annotations

import logging
from typing import Any

import gevent
import pytest

from operations import host


class Target:
    """Stand-in for pyinfra's host: each look is a text to answer, or None to hang for ever."""

    name, connected = "lab1", True

    def __init__(self, *looks: str | None) -> None:
        self.looks = list(looks)
        self.said: list[str] = []

    def disconnect(self) -> None:
        """Nothing to end."""

    def connect(self, show_errors: bool) -> None:
        """Connected."""

    def log(self, text: str) -> None:
        """What the operator would see."""
        self.said.append(text)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits, and no pyinfra behind the looks."""

    def fact(state: Any, target: Target, kind: type) -> str:
        look = target.looks.pop(0)
        if look is None:
            gevent.sleep(3600)
        return str(look)

    monkeypatch.setattr(host, "fact_of", fact)
    monkeypatch.setattr(host, "reconnect", lambda state, host, limit_s: host.connect(False))
    monkeypatch.setattr(host, "POLL_S", 0.01)
    monkeypatch.setattr(host, "LOOK_S", 0.05)


def test_a_look_that_hangs_is_given_up_and_the_next_one_finds_the_boot() -> None:
    target = Target("old", None, None, "new")
    assert host.wait_for_boot(None, target, "old", 60) < 60
    assert target.looks == []


def test_what_paramiko_says_of_a_host_that_goes_down_is_not_shown() -> None:
    log = logging.getLogger("paramiko.transport")
    log.setLevel(logging.NOTSET)
    host.wait_for_boot(None, Target("new"), "old", 60)
    assert not log.isEnabledFor(logging.ERROR)  # it comes with a traceback


def test_a_host_that_only_hangs_ends_with_the_budget() -> None:
    target = Target(*[None] * 100)
    with pytest.raises(host.StepFailed, match="did not come back within 1 s"):
        host.wait_for_boot(None, target, "old", 1)
