"""operations.change.node_call.call: a request goes through stdin, never into a command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facts.rignode import pack
from operations.change import node_call as operations_node
from operations.change.node_call import call
from tests.plans.support.commands import sent

REQUEST = {"change": "change-1", "secret": "T0P-S3CRET"}


def test_the_request_goes_through_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line holds no word of the request, packed or plain."""
    seen: dict[str, Any] = {}

    def in_host(_: Any, __: Any, ___: Any, command: Any, **arguments: Any) -> Any:
        seen.update(arguments, command=command.get_raw_value())
        return True, SimpleNamespace(stdout_lines=['{"ok": true}'], stderr_lines=[])

    monkeypatch.setattr(operations_node, "in_host", in_host)
    host: Any = SimpleNamespace(name="lab1", data={}, run_shell_command=None)
    state: Any = SimpleNamespace(print_output=False, print_input=False)
    assert call(state, host, "apply", REQUEST) == {"ok": True}
    read = sent("lab1", seen["command"], seen["_stdin"])
    assert read.verb == "apply" and read.request == REQUEST
    other: dict[str, Any] = {}
    seen, other = other, seen
    call(state, host, "apply", {"change": "x"})
    assert seen["command"] == other["command"] and seen["_stdin"] != other["_stdin"]


def test_the_program_reads_it_there(tmp_path: Path) -> None:
    """The whole line in a real shell: the verb's request is the program's own stdin."""
    made = pack.install_call(
        "journal", {"change": "T0P-S3CRET"}, str(tmp_path / "lib"), str(tmp_path / "rignode")
    )
    done = subprocess.run(
        ["sh", "-c", made.line],
        input=made.stdin,
        env={"PATH": "/usr/bin:/bin", "RIGBOOK_STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "no change T0P-S3CRET" in json.loads(done.stdout)["error"]
