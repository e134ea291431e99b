"""facts.snapshot.Snapshot: one bounded, packed command, and a typed document or one line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api.exceptions import FactProcessError

from facts import observe
from facts.rignode.call import bounded
from facts.snapshot import Snapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable
from tests.plans.support.commands import sent
from tests.plans.support.scenario import HEAD, tiny_plan
from tests.unit.builders.snapshots import healthy, put
from tests.unit.operations.doubles import FakeState

ROOT = Path(__file__).resolve().parents[3]

PLAN = tiny_plan()
SEEN = healthy(PLAN)[HEAD]


def test_the_command_is_bounded_on_the_host_and_carries_the_request() -> None:
    """Nothing is installed, and the request is the plan's own."""
    request = PLAN.requests[HEAD].model_dump_json()
    command = Snapshot().command(request)
    assert command.startswith(f"timeout -k 5 {Snapshot.timeout_s} sh -c ")
    went = sent(HEAD, command)
    assert went.verb == "snapshot" and went.request == json.loads(request)
    assert not went.changes


def test_bounded_quotes_and_ends() -> None:
    """Quotes of the command survive; a command that hangs is ended with what it started."""
    command = bounded("printf '%s|' \"it's\" '$HOME'", 5)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=10)
    assert done.stdout == "it's|$HOME|"
    hung = subprocess.run(shlex.split(bounded("sleep 60", 1)), timeout=10, check=False)
    assert hung.returncode == 124


def test_a_document_is_typed() -> None:
    """Also behind a login banner."""
    lines = ["Welcome to the DGX", SEEN.model_dump_json()]
    assert Snapshot().process(lines) == SEEN
    assert isinstance(Snapshot().process(lines), NodeSnapshot)


def test_a_section_that_could_not_be_read_stays_unknown() -> None:
    """With its reason: unknown is not absent."""
    blind = put(SEEN, "docker", Unreadable(unreadable="dockerd does not answer"))
    found = Snapshot().process([blind.model_dump_json()])
    assert found.docker == Unreadable(unreadable="dockerd does not answer")


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([], f"nothing (limit {Snapshot.timeout_s} s)"),
        (["sh: 1: python3: not found"], "no snapshot but: 'sh: 1: python3: not found'"),
        (['{"ok": false, "error": "not root"}'], "node snapshot failed: not root"),
        (['{"format": 2}'], "does not fit at format"),
        (["[1, 2]"], "no snapshot but: '[1, 2]'"),
        (["null"], "no snapshot but: 'null'"),
        (['"text"'], "no snapshot but:"),
    ],
)
def test_anything_else_is_one_line(lines: list[str], line: str) -> None:
    """What the host answered instead, never a traceback."""
    with pytest.raises(FactProcessError) as refused:
        Snapshot().process(lines)
    assert line in str(refused.value) and "\n" not in str(refused.value)


def test_an_unknown_key_is_refused() -> None:
    """A newer or older node is not read as if it were this one."""
    document = {**SEEN.to_json(), "wifi": []}
    with pytest.raises(FactProcessError, match="does not fit at wifi"):
        Snapshot().process([json.dumps(document)])


def test_a_plan_that_is_gone_lends_nothing_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython gives the next object the number of the one before."""
    monkeypatch.setattr(observe, "ask_each", lambda _state, plan, *_: plan.profile)
    state: Any = FakeState()
    for number in range(50):
        found: Any = observe.observe(state, replace(PLAN, profile=str(number)))
        assert found == str(number)


def test_a_fact_that_comes_late_is_refused_also_without_asserts() -> None:
    text = """
from facts.rignode.together import Together
from facts.snapshot import Snapshot
asked = Together.__new__(Together)
asked._parts, asked._said, asked._state = {"a": {}}, {}, None
try:
    asked.add(Snapshot())
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-O", "-c", text], capture_output=True, text=True,
                          cwd=ROOT, check=True)  # fmt: skip
    assert done.stdout == "RuntimeError snapshot: the hosts have been asked already\n"
