"""node's look at a venv, on a real one: each piece that can be missing is told apart."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.snapshot import venv
from node.snapshot.collect import collect
from schema.observed.files import Venv

USER = getpass.getuser()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A link to a real venv with a program and a dist-info, as pip leaves them."""
    folder = tmp_path / "venvs" / "1"
    argv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(argv, check=True, timeout=60)
    entry = folder / "bin" / "vllm"
    entry.write_text(f"#!{folder}/bin/python\nprint('vllm')\n")
    entry.chmod(0o755)
    packages = next(folder.glob("lib/python3*/site-packages"))
    for name in ("vllm-0.32.0+cpu", "torch-2.13.0+cpu", "other-1.0"):
        (packages / f"{name}.dist-info").mkdir()
    link = tmp_path / "venv"
    link.symlink_to(folder)
    return link


def look(path: Path) -> Venv:
    """The typed answer of the whole snapshot."""
    document = collect({"venvs": [{"path": str(path), "user": USER}]})
    assert isinstance(document["venvs"], list), document["venvs"]
    return Venv.model_validate(document["venvs"][0])


def test_a_whole_venv(made: Path) -> None:
    found = look(made)
    assert (found.path, found.target) == (str(made), str(made.resolve()))
    assert found.python == os.path.realpath(sys.executable)
    assert found.python_version == ".".join(map(str, sys.version_info[:3]))
    assert (found.entry_kind, found.entry_executable) == ("file", True)
    assert found.entry_shebang == f"{made.resolve()}/bin/python" and found.entry_shebang_exists
    assert found.versions == {"torch": ("2.13.0+cpu",), "vllm": ("0.32.0+cpu",)}
    assert found.user_exists


def test_a_deleted_entry_point(made: Path) -> None:
    (made / "bin" / "vllm").unlink()
    found = look(made)
    assert found.entry_kind == "absent" and found.versions["vllm"] == ("0.32.0+cpu",)
    assert (found.entry_executable, found.entry_shebang) == (False, None)


def test_an_entry_point_without_its_x_bit_or_interpreter(made: Path) -> None:
    entry = made / "bin" / "vllm"
    entry.chmod(0o644)
    assert look(made).entry_executable is False
    entry.write_text("#!/opt/gone/bin/python3\n")
    found = look(made)
    assert (found.entry_shebang, found.entry_shebang_exists) == ("/opt/gone/bin/python3", False)


def test_pips_way_around_a_long_path(made: Path) -> None:
    long = f"{made.resolve()}/bin/python"
    entry = made / "bin" / "vllm"
    entry.write_text(f"#!/bin/sh\n'''exec' {long} \"$0\" \"$@\"\n' '''\nimport sys\n")
    assert look(made).entry_shebang == long
    entry.write_text(f"#!/bin/sh\n'''exec' \"{long} x\" \"$0\" \"$@\"\n' '''\n")
    assert look(made).entry_shebang == f"{long} x"


def test_a_base_interpreter_that_is_gone(made: Path) -> None:
    for name in ("python", "python3"):
        path = made / "bin" / name
        path.unlink()
        path.symlink_to("/opt/gone/python3")
    found = look(made)
    assert found.python is None and found.target is not None
    assert found.entry_shebang_exists is False


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    link = tmp_path / "venv"
    link.symlink_to(tmp_path / "gone")
    found = look(link)
    assert (found.target, found.entry_kind, found.versions) == (None, "absent", {})


def test_two_dist_infos_are_both_told(made: Path) -> None:
    packages = next(made.glob("lib/python3*/site-packages"))
    (packages / "vllm-0.31.0+cpu.dist-info").mkdir()
    assert look(made).versions["vllm"] == ("0.31.0+cpu", "0.32.0+cpu")


def test_an_unknown_user(made: Path) -> None:
    row = venv.one(str(made), "no-such-user-here")
    assert (row["user_exists"], row["shm_goes"]) == (False, None)


@pytest.mark.parametrize(("uid", "text", "drop_in", "goes"), [
    (1000, "", "", True), (1000, "[Login]\n#RemoveIPC=no\n", "", True),
    (1000, "[Login]\nRemoveIPC=no\n", "", False), (1000, "[Login]\nRemoveIPC=yes\n", "", True),
    (1000, "[Login]\nRemoveIPC=yes\n", "[Login]\nRemoveIPC=no\n", False),
    (0, "", "", False), (998, "", "", False),
])  # fmt: skip
def test_whose_shared_memory_logind_removes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uid: int, text: str, drop_in: str, goes: bool
) -> None:
    conf = tmp_path / "logind.conf"
    conf.write_text(text)
    folder = tmp_path / "systemd" / "logind.conf.d"
    folder.mkdir(parents=True)
    (folder / "10-a.conf").write_text(drop_in)
    monkeypatch.setattr(venv, "LOGIND", (str(conf),))
    monkeypatch.setattr(venv, "_LOGIND_DROP_INS", (str(tmp_path),))
    assert venv.shm_goes("nobody-lingers", uid) is goes


def test_patches_are_looked_for_in_the_venv(made: Path) -> None:
    packages = next(made.glob("lib/python3*/site-packages"))
    (packages / "vllm").mkdir()
    (packages / "vllm" / "x.py").write_text("empty_cache\nempty_cache\n")
    probe = {"image": str(made), "path": "/lib/python3*/site-packages/vllm/x.py",
             "contains": "empty_cache"}  # fmt: skip
    (row,) = collect({"image_files": [probe]})["image_files"]
    assert [(m["count"], m["path"].endswith("/vllm/x.py")) for m in row["matches"]] == [(2, True)]


@pytest.mark.parametrize("wrong", [
    {"path": "relative", "user": "x"}, {"path": "/x"}, {"path": "/a/../b", "user": "x"},
])  # fmt: skip
def test_a_request_that_is_no_venv_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(Exception, match="venvs"):
        collect({"venvs": [wrong]})
