"""gpu_limit's guard with real systemd and the real API: a chart that is deployed again is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.kubernetes.conftest import OLARES, Olares, deployment

NAME = "CUDA_DEVICE_MEMORY_LIMIT_0"
SERVICE, TIMER = "rigbook-limit.service", "rigbook-limit.timer"
LOST = f"has lost what gpu_limit set: {NAME} is '23000m', it was set to '24000m'"


JOURNAL = (
    f"sudo journalctl --sync; sudo journalctl -o cat -u {SERVICE} --cursor-file=/run/guard.at; true"
)


def look(olares: Olares) -> str:
    """What the guard tells in one look, as its timer starts it."""
    olares.lab.ssh("test1", JOURNAL)
    olares.lab.ssh("test1", f"sudo systemctl start {SERVICE}")
    return olares.lab.ssh("test1", JOURNAL)


@pytest.fixture
def guarded(olares: Olares) -> Iterator[Olares]:
    """A limit with its guard, which goes at the end."""
    done = olares.limit("limit=24000m", "guard=true")
    assert done.rc == 0, done.text
    yield olares
    olares.limit("limit=24000m")


def test_a_chart_that_is_deployed_again_is_told_once(guarded: Olares) -> None:
    assert guarded.lab.ssh("test1", f"systemctl is-active {TIMER}") == "active"
    assert "has lost" not in look(guarded)
    again = guarded.limit("limit=24000m", "guard=true")
    assert again.counts("Set the variables") == ("1", "-", "-", "1"), again.text

    guarded.make(deployment(CUDA_DEVICE_MEMORY_LIMIT_0="23000m"))
    assert LOST in look(guarded)
    assert "has lost" not in look(guarded)
    assert guarded.env()[NAME] == "23000m"
    doctor = guarded.lab.pyinfra("doctor", inventory=OLARES)
    assert "gpu-limit-drift" in doctor.text, doctor.text

    assert guarded.limit("limit=24000m", "guard=true").rc == 0
    assert "has again what gpu_limit set" in look(guarded)
    assert "gpu-limit-drift" not in guarded.lab.pyinfra("doctor", inventory=OLARES).text


def test_a_run_without_it_takes_the_guard_away(guarded: Olares) -> None:
    done = guarded.limit("limit=23900m")
    assert done.rc == 0, done.text
    state = guarded.lab.ssh("test1", f"systemctl is-active {TIMER}; ls /etc/rigbook", check=False)
    assert "limit.json" not in state and state.splitlines()[0] != "active", state
