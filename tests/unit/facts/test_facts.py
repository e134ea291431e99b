"""facts.node.Snapshot: one bounded, packed command, and a typed document or one line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyinfra.api.exceptions import FactProcessError

from facts import node
from facts.looks import DropInCheck
from facts.node import Snapshot, bounded
from facts.plain import NcclLog, NcclNetwork, Unit, UnitState
from schema.snapshot import NodeSnapshot, Unreadable
from tests.plans.support.doubles import sent
from tests.plans.support.scenario import HEAD, tiny_plan
from tests.unit.builders.rigs import healthy, put
from tests.unit.facts.cases import make_fact_tests
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
    monkeypatch.setattr(node, "ask_each", lambda _state, plan, *_: plan.profile)
    state: Any = FakeState()
    for number in range(50):
        found: Any = node.observe(state, replace(PLAN, profile=str(number)))
        assert found == str(number)


def test_a_fact_that_comes_late_is_refused_also_without_asserts() -> None:
    text = """
from facts.node import Together
from facts.node import Snapshot
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


# The check of a drop-in: one bounded command, and an answer that is never made up.

REQUEST = {"unit": "a.service", "path": "/etc/systemd/system/a.service.d/50-x.conf"}


def test_the_command_is_bounded_on_the_host_and_holds_no_request_as_shell_text() -> None:
    line = DropInCheck().command(json.dumps({**REQUEST, "content": "'; touch /x; #"}))
    assert line.startswith("timeout -k 5 60 sh -c ") and "touch /x" not in line


def test_an_answer_is_taken_as_it_is() -> None:
    answer = {"problems": [], "ghosts": ["g"], "exec_start": ["/a"]}
    assert DropInCheck().process(["noise", json.dumps({"ok": True, **answer})]) == answer


@pytest.mark.parametrize("output", [[], ["sudo: no"], ['{"ok": false, "error": "bad unit"}']])
def test_no_answer_is_an_error(output: list[str]) -> None:
    with pytest.raises(FactProcessError, match=r"nothing \(limit 60 s\)|no dropin but|bad unit"):
        DropInCheck().process(output)


# facts.plain: recorded answers of systemctl and journalctl (cases_*/*.yaml), and what
# ended.

HERE = Path(__file__).parent

UnitCases = make_fact_tests("facts", "plain.Unit", HERE / "cases_unit")
LogCases = make_fact_tests("facts", "plain.Log", HERE / "cases_log")


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


# What NCCL's lines in a log say of its network: the fact's own command, on recorded lines.

LOGS = yaml.safe_load(Path(__file__).with_name("nccl_logs.yaml").read_text())


def read(folder: Path, log: str) -> NcclNetwork:
    """What the command gives, with doubles that have this log for one start of the unit."""
    (folder / "log").write_text(log)
    for name, line in (
        ("systemctl", "[ $# = 5 ] && [ $5 = rigbook-engine.service ] && echo 9f2c4d"),
        ("journalctl", f'[ "$4" = _SYSTEMD_INVOCATION_ID=9f2c4d ] && cat {folder}/log'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    command = NcclLog().command("rigbook-engine.service")
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", command], env=path, capture_output=True, text=True, timeout=9
    )
    assert (done.returncode, done.stderr) == (0, "")
    return NcclLog().process(done.stdout.splitlines())


@pytest.mark.parametrize("case", LOGS, ids=[case["source"] for case in LOGS])
def test_what_a_log_says(tmp_path: Path, case: dict[str, Any]) -> None:
    found = read(tmp_path, case["log"])
    assert [dict(found.channels), list(found.used), list(found.devices)] == case["says"]
    assert list(found.networks) == case["networks"]
