"""facts.unit_state: recorded answers of systemctl and journalctl (cases_*/*.yaml), and what
ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyinfra.api.exceptions import FactProcessError

from facts.unit_state import Unit, UnitState
from tests.unit.facts.cases import make_fact_tests

HERE = Path(__file__).parent

UnitCases = make_fact_tests("facts", "unit_state.Unit", HERE / "cases_unit")
LogCases = make_fact_tests("facts", "unit_state.Log", HERE / "cases_log")


def state(**changes: Any) -> UnitState:
    """A unit that runs."""
    values: dict[str, Any] = {
        "active": "active", "sub": "running", "restarts": 0, "result": "success",
        "exit_status": 0, "invocation": "one", "last_line": "",
    }  # fmt: skip
    return UnitState(**{**values, **changes})


@pytest.mark.parametrize(
    "output",
    [
        [],
        ["System has not been booted with systemd as init system (PID 1). Can't operate."],
        ["ActiveState=active"],
        ["ActiveState=active", "SubState=running", "NRestarts=many"],
    ],
    ids=["nothing", "no systemd", "half", "no number"],
)
def test_an_answer_that_is_none_is_refused(output: list[str]) -> None:
    """Unknown is not running: one line with what was said."""
    with pytest.raises(FactProcessError, match="systemctl show answered"):
        Unit().process(output)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (state(), None),
        (state(active="activating", sub="start-pre"), None),
        (state(active="reloading"), None),
        (state(last_line="something else"), None),
        (
            state(active="failed", result="exit-code", exit_status=1),
            "unit failed: exit-code, exit status 1",
        ),
        (state(active="failed", result="start-limit-hit"), "unit failed: start-limit-hit"),
        # An engine's death exits 0, so `Result` alone would call it a success.
        (state(restarts=1), "the engine ended (exit status 0) and systemd restarts it"),
        (state(active="activating", sub="auto-restart"), "the engine ended (exit status 0)"),
        # prelaunch refused: the engine's program never ran
        (state(restarts=1, result="exit-code"), "the start failed, not the engine's own program"),
        (state(active="inactive", sub="dead"), "the unit is inactive"),
        (state(active="deactivating", sub="stop-sigterm"), "the unit is deactivating"),
        (state(invocation="two"), "somebody started the unit anew"),
    ],
)
def test_what_ended_since(now: UnitState, reason: str | None) -> None:
    """Against the first look at this start of the unit."""
    ended = now.ended_since(state())
    assert ended is None if reason is None else str(ended).startswith(reason)


def test_restarts_before_the_first_look_do_not_count() -> None:
    """The counter is the unit's, not this start's."""
    assert state(restarts=4).ended_since(state(restarts=4)) is None


def test_an_unknown_first_invocation_is_no_end() -> None:
    """The unit was still being started at the first look."""
    assert state().ended_since(state(invocation="")) is None
