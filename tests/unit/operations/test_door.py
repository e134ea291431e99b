"""operations/door: the script that root runs holds what it says, and only for a login's name."""

from __future__ import annotations

import ast
import base64
import io
import os
import zipfile
import zlib

import pytest

from operations.door import __main__ as command
from operations.door import script as made
from schema.render import node_program


def files(login: str = "olares") -> dict[str, tuple[int, bytes]]:
    """What the script writes: path to mode and content."""
    tree = ast.parse(made.script(login))
    (rows,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FILES"
    )
    return {path: (mode, zlib.decompress(base64.b64decode(word)))
            for path, mode, word in ast.literal_eval(rows)}  # fmt: skip


def test_the_sudoers_file_names_the_door_and_nothing_else() -> None:
    mode, raw = files()[made.SUDOERS]
    lines = [line for line in raw.decode().splitlines() if not line.startswith("#")]
    assert (mode, lines) == (0o440, [f"olares ALL=(root) NOPASSWD: {made.DOOR}"])


def test_the_door_names_the_program_that_comes_with_it() -> None:
    mode, program = files()[node_program.path()]
    assert mode == 0o755 and "node/cli/door.py" in zipfile.ZipFile(io.BytesIO(program)).namelist()
    mode, door = files()[made.DOOR]
    assert mode == 0o755 and f'PROGRAM = "{node_program.path()}"' in door.decode()
    ast.parse(door)


def test_no_other_user_than_root_runs_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="run it as root"):
        exec(compile(made.script("olares"), "rigbook-door.py", "exec"), {})


@pytest.mark.parametrize("login", ["", "ALL", "%sudo", "a b", "a,b", "a\nALL", "../x", "#0"])
def test_what_is_no_logins_name_is_refused(login: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would stand in sudoers."""
    assert command.main([login]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert command.main([]) == 2 and "name one login" in capsys.readouterr().err
