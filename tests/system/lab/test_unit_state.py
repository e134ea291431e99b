"""Fault 56 with the real systemd: a unit that somebody restarts is no unit that was down."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest

from facts.rignode import pack
from tests.system.rehearsal import Lab

UNIT = "rigbook-trial-passing.service"
CHANGE = "20261120T000000Z-trial-56"
# Its stop takes as long as an engine's may.
TEXT = "[Service]\nExecStart=/usr/bin/sleep infinity\nExecStop=/usr/bin/sleep 4\nType=exec\n"


def root(lab: Lab, verb: str, request: dict[str, object]) -> dict[str, Any]:
    """A verb of node as root on test1; what it answered."""
    line, stdin = pack.install_call(verb, request)
    said = lab.ssh("test1", f"sudo -n sh -c {shlex.quote(line)}", check=False, stdin=stdin)
    return dict(json.loads(said.splitlines()[-1]))


def active(lab: Lab) -> str:
    """The unit's active state now."""
    return lab.ssh("test1", f"systemctl show -P ActiveState {UNIT}")


@pytest.fixture
def runs(lab: Lab) -> Iterator[Lab]:
    """test1 with the unit running, and no change of the test's left behind."""
    lab.ssh("test1", f"sudo tee /etc/systemd/system/{UNIT} >/dev/null", stdin=TEXT)
    lab.ssh("test1", f"sudo systemctl daemon-reload && sudo systemctl start {UNIT}")
    yield lab
    lab.ssh("test1", f"sudo systemctl kill -s KILL {UNIT}; sudo systemctl stop {UNIT}; "
            f"sudo rm -f /etc/systemd/system/{UNIT}; "
            # only root may read that folder, and the shell's pattern needs to
            f"sudo sh -c 'rm -f /var/lib/rigbook/journal/{CHANGE}*'; "
            "sudo systemctl daemon-reload; sudo systemctl reset-failed", check=False)  # fmt: skip


@pytest.mark.parametrize(("verb", "goal"), [("restart", "active"), ("stop", "inactive")])
def test_a_unit_that_is_stopping_is_recorded_as_what_it_becomes(
    runs: Lab, verb: str, goal: str
) -> None:
    """The pair's timer restarts the worker while serve begins: undo brings it up again."""
    runs.ssh("test1", f"sudo systemctl {verb} --no-block {UNIT}; sleep 1")
    assert active(runs) == "deactivating"
    change = {"id": CHANGE, "deploy": "trial", "operator": "t"}
    step = {"op": "unit", "unit": UNIT, "active": "stop", "enabled": None}
    done = root(runs, "apply", {"change": change, "steps": [step]})
    assert done["ok"] and active(runs) == "inactive", done
    if goal == "inactive":
        assert done["changed"] is False
        return
    entry = root(runs, "journal", {"change": CHANGE})["change"]["steps"][0]
    assert entry["pre"]["active"] == goal
    assert root(runs, "undo", {"change": CHANGE})["status"] == "ROLLED_BACK"
    time.sleep(1)
    assert active(runs) == "active"
