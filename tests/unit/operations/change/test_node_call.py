"""operations.change.node_call.call: what a host answers becomes a document or one line."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from operations.change import node_call as operations_node
from operations.change.node_call import StepFailed, call
from tests.plans.support.commands import sent


class Line:
    """Stand-in for the connection to one host; keeps the command."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        out: str = "",
        err: str = "",
        broken: Exception | None = None,
    ) -> None:
        self.command = ""
        self.sudo = False
        self.stdin = ""
        host = SimpleNamespace(name="lab1", data={}, run_shell_command=None)
        state = SimpleNamespace(print_output=False, print_input=False)

        def in_host(state_: Any, host_: Any, function: Any, command: Any, **arguments: Any) -> Any:
            self.command = command.get_raw_value()
            self.sudo, self.stdin = arguments["_sudo"], arguments["_stdin"]
            if broken:
                raise broken
            output = SimpleNamespace(stdout_lines=out.splitlines(), stderr_lines=err.splitlines())
            return not err, output

        patch.setattr(operations_node, "in_host", in_host)
        self.ask = lambda **request: call(state, host, "close", request, 7)


def test_a_document_comes_back_and_the_request_went_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, bounded on the host, with node installed first."""
    line = Line(monkeypatch, 'a warning of sudo\n{"ok": true, "changed": false}')
    assert line.ask(change="x") == {"ok": True, "changed": False}
    assert line.command.startswith("timeout -k 5 7 sh -c ") and line.sudo
    went = sent("lab1", line.command, line.stdin)
    assert (went.verb, went.request, went.installs) == ("close", {"change": "x"}, True)


@pytest.mark.parametrize(
    ("out", "err", "line"),
    [
        (
            json.dumps({"ok": False, "error": "no change x", "code": "no_change", "remedy": "y"}),
            "",
            "lab1: close: no change x; y",
        ),
        (json.dumps({"ok": False, "error": "no"}), "", "lab1: close: no"),
        ("", "sudo: a password is required", "lab1: close: the host answered: sudo: a password"),
        ("7", "", "lab1: close: the host answered: 7"),
        ("Killed", "", "lab1: close: the host answered: Killed"),
        ("", "", "lab1: close: the host answered nothing (limit 7 s)"),
    ],
)
def test_anything_else_is_one_line(
    monkeypatch: pytest.MonkeyPatch, out: str, err: str, line: str
) -> None:
    """With the host, the verb and its own words."""
    with pytest.raises(StepFailed) as failed:
        Line(monkeypatch, out, err).ask()
    assert str(failed.value).startswith(line)
    assert failed.value.code == ("no_change" if "no_change" in out else "")


def test_a_broken_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the transport raises."""
    with pytest.raises(StepFailed, match="lab1: close: the connection failed: reset"):
        Line(monkeypatch, broken=OSError("reset")).ask()
