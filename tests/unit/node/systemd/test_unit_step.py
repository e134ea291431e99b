"""The unit step: a start is begun, not waited out; what fails is said at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from node.core import systemctl
from node.core.errors import NodeError
from node.systemd import unit_step

NAME = "engine.service"


class Systemd:
    """A stand-in for systemctl: the states that a unit goes through, one a question."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.calls: list[str] = []

    def __call__(self, *words: str) -> str:
        self.calls.append(" ".join(words))
        if words[0] != "show":
            return ""
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        active, invocation, job = state.split("/")
        text = f"ActiveState={active}\nInvocationID={invocation}\nResult=exit-code\n"
        return text + (f"Job={job}\n" if job else "")


def begin(monkeypatch: pytest.MonkeyPatch, verb: str, *states: str) -> Systemd:
    """Begin a unit that goes through these states, the first before the call."""
    systemd = Systemd(*states)
    monkeypatch.setattr(systemctl, "systemctl", systemd)
    monkeypatch.setattr(systemctl, "POLL_S", 0.01)
    monkeypatch.setattr(systemctl, "BEGIN_S", 0.2)
    systemctl.begin(verb, NAME)
    return systemd


def test_a_start_is_over_when_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine loads for minutes; systemd calls it activating until its first answer."""
    systemd = begin(monkeypatch, "start", "inactive//", "inactive//9", "activating/new/9")
    assert systemd.calls[0] == f"reset-failed {NAME}"
    assert f"start --no-block {NAME}" in systemd.calls


@pytest.mark.parametrize(("verb", "states"), [
    ("start", ("activating/old/7",)), ("start", ("inactive//", "active/new/")),
    ("restart", ("active/old/", "active/old/9", "deactivating/old/9", "activating/new/9")),
    ("start", ("inactive/old/", "activating/new/3", "inactive/new/")),
    ("start", ("inactive/old/", "inactive/new/")),
])  # fmt: skip
def test_what_counts_as_begun(
    monkeypatch: pytest.MonkeyPatch, verb: str, states: tuple[str, ...]
) -> None:
    """Also: one that starts already, a restart after its stop, a oneshot that is done."""
    systemd = begin(monkeypatch, verb, *states)
    assert systemd.states == [states[-1]]


@pytest.mark.parametrize(("verb", "states", "said"), [
    ("start", ("inactive//", "failed/new/"), "it failed (exit-code)"),
    ("restart", ("active/old/", "failed/new/"), "it failed"),
    ("start", ("inactive//", "inactive//9", "inactive//"), "what it requires failed"),
    ("start", ("inactive//", "inactive//9"), "it is inactive and has not begun"),
])  # fmt: skip
def test_a_start_that_fails_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, verb: str, states: tuple[str, ...], said: str
) -> None:
    started = time.monotonic()
    with pytest.raises(NodeError) as caught:
        begin(monkeypatch, verb, *states)
    assert said in str(caught.value) and caught.value.code == "unit_failed"
    assert f"journalctl -u {NAME}" in caught.value.remedy
    assert time.monotonic() - started < 15


def test_a_stop_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """TimeoutStopSec is longer than a start may take to begin."""
    states = ["active/old/", *["deactivating/old/9"] * 60, "activating/new/9"]
    begin(monkeypatch, "restart", *states)
    with pytest.raises(NodeError, match="deactivating"):
        monkeypatch.setattr(systemctl, "TIMEOUT_S", 0.1)
        begin(monkeypatch, "restart", "active/old/", "deactivating/old/9")


def test_a_changed_unit_file_is_enabled_again(tmp_path: Path) -> None:
    """Its [Install] may ask for further links, and `enable` adds those alone."""
    step = {"unit": NAME, "enabled": True, "active": None, "daemon_reload": True}
    seen = {"enabled": "enabled", "active": "active", "needs_reload": False}
    assert unit_step.actions(step, seen, False) == []
    assert unit_step.actions(step, seen, True) == [["daemon-reload"], ["enable", NAME]]


def test_of_several_steps_the_first_tells_what_was_and_the_last_what_was_asked_for() -> None:
    rows = [
        {"unit": NAME, "pre": {"active": "active"}, "enabled": True, "active": "stop"},
        {"unit": NAME, "pre": {"active": "inactive"}, "enabled": None, "active": "start"},
    ]
    kind = unit_step.UnitKind("unit")
    assert kind.folded(rows, "pre")["pre"] == {"active": "active"}
    left = kind.folded(rows, "post")
    assert (left["enabled"], left["active"]) == (True, "start")
