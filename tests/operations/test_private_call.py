"""operations.node.call with `private`: a secret goes through stdin, never into a command line."""

from __future__ import annotations

import base64
import bz2
import json
import re
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from node import pack
from operations import node as operations_node
from operations.node import call

REQUEST = {"change": "change-1", "secret": "T0P-S3CRET"}


def test_the_request_goes_through_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packed command holds the verb and the program, not the request."""
    seen: dict[str, Any] = {}

    def in_host(_: Any, __: Any, ___: Any, command: Any, **arguments: Any) -> Any:
        seen.update(arguments, command=command.get_raw_value())
        return True, SimpleNamespace(stdout_lines=['{"ok": true}'], stderr_lines=[])

    monkeypatch.setattr(operations_node, "in_host", in_host)
    host = SimpleNamespace(name="lab1", run_shell_command=None)
    state: Any = SimpleNamespace(print_output=False, print_input=False)
    assert call(state, host, "apply", REQUEST, private=True) == {"ok": True}  # type: ignore[arg-type]
    assert json.loads(seen["_stdin"]) == REQUEST
    packed = re.search(r"printf %s ([A-Za-z0-9+/=]+)", seen["command"])
    assert packed
    raw = bz2.decompress(base64.b64decode(packed[1]))
    assert b"T0P-S3CRET" not in raw and b"T0P-S3CRET" not in seen["command"].encode()
    call(state, host, "apply", REQUEST)  # type: ignore[arg-type]
    packed = re.search(r"printf %s ([A-Za-z0-9+/=]+)", seen["command"])
    assert packed and b"T0P-S3CRET" in bz2.decompress(base64.b64decode(packed[1]))


def test_the_program_reads_it_there(tmp_path: Any) -> None:
    """The whole line in a real shell: the verb's request comes from the command's stdin."""
    line = pack.install_command("journal", None, str(tmp_path / "lib"), str(tmp_path / "rignode"))
    done = subprocess.run(
        ["sh", "-c", line],
        input=json.dumps({"change": "T0P-S3CRET"}),
        env={"PATH": "/usr/bin:/bin", "RIGBOOK_STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "no change T0P-S3CRET" in json.loads(done.stdout)["error"]
