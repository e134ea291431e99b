"""The bundle of a silent engine: what it holds, its bounds, who may read it, and its secrets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from node.core import files
from node.core.errors import CannotRead
from node.core.run import TimedOut
from node.engine import evidence
from node.engine.evidence import Part
from tests.unit.node.support.host import engine

SECRET = "T0P-S3CRET-value"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"# head\nHF_TOKEN={SECRET}\n")
    monkeypatch.setenv("RIGBOOK_SECRETS", str(secrets))
    return tmp_path


def made(**parts: Part) -> Path:
    """A bundle of these files."""
    files = {name.replace("_", "."): part for name, part in parts.items()}
    return Path(evidence.keep("rigbook-engine", {"reason": f"silent, {SECRET}"}, files))


def fail(error: Exception) -> Part:
    def make() -> str:
        raise error

    return Part(make)


def test_a_bundle_is_roots_alone_and_says_what_it_lacks(home: Path) -> None:
    path = made(
        a_txt=Part(lambda: f"--api-key {SECRET}\nvllm:generation_tokens_total{{}} 358688.0\n"),
        a_log=Part(lambda: f"Authorization {SECRET}\napi_key=other-value\n", log=True),
        b_txt=fail(CannotRead("py-spy is not installed")),
        c_txt=fail(TimedOut("ss did not answer in 10 s")),
        d_txt=fail(PermissionError(13, "Permission denied", "/proc/1/stack")),
    )
    assert path.parent == home / "state" / "evidence" and path.parent.stat().st_mode & 0o77 == 0
    assert path.stat().st_mode & 0o777 == 0o700
    assert {row.name: row.stat().st_mode & 0o777 for row in path.iterdir()} == {
        "a.log": 0o600, "a.txt": 0o600, "summary.json": 0o600,
    }  # fmt: skip
    text = "".join(row.read_text() for row in path.iterdir())
    assert SECRET not in text and "other-value" not in text and "***" in text
    assert "vllm:generation_tokens_total{} 358688.0" in text
    summary = json.loads((path / "summary.json").read_text())
    assert summary["missing"]["b.txt"] == "py-spy is not installed"
    assert set(summary["missing"]) == {"b.txt", "c.txt", "d.txt"}


def test_no_program_of_a_venv_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is its owner's, and this is root."""
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    tool.chmod(0o755)
    monkeypatch.setattr(evidence, "_pids", lambda: [{"pid": 1, "comm": "VLLM::EngineCore"}])
    venv = {"path": str(tmp_path), "user": "nobody", "version": None}
    parts = evidence.parts(engine(container=None, image=None, venv=venv))
    with contextlib.suppress(CannotRead):
        parts["python-stacks.txt"].make()
    assert not (tmp_path / "ran").exists()


def test_a_log_keeps_its_end_and_the_rest_its_beginning() -> None:
    long = "first " + "x" * (2 * evidence.FILE_BYTES) + " last"
    path = made(a_txt=Part(lambda: long), b_log=Part(lambda: long, log=True))
    first, last = (path / "a.txt").read_bytes(), (path / "b.log").read_bytes()
    assert len(first) == len(last) == evidence.FILE_BYTES
    assert first.startswith(b"first") and last.endswith(b"last")


def test_a_part_that_hangs_does_not_keep_the_rest_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "PART_S", 0.3)
    started = time.monotonic()
    path = made(a_txt=Part(lambda: time.sleep(3) or ""), b_txt=Part(lambda: "there"))
    assert time.monotonic() - started < 2
    summary = json.loads((path / "summary.json").read_text())
    assert summary["missing"] == {"a.txt": "nothing in 0.3 s"}
    assert (path / "b.txt").read_text() == "there"


def test_the_newest_five_stay_and_what_a_kill_left_goes(home: Path) -> None:
    folder = home / "state" / "evidence"
    for n in range(7):
        (folder / f"2026010{n}T000000Z-rigbook-engine").mkdir(parents=True)
    (folder / "20260101T000000Z-rigbook-engine.part").mkdir()
    path = made(a_txt=Part(lambda: "x" * 1000))
    names = sorted(row.name for row in folder.iterdir())
    assert len(names) == files.KEEP_BUNDLES and names[-1] == path.name
    assert not any(name.endswith(".part") for name in names)
    newest = files.bundles()[0]
    assert newest.path == str(path) and newest.bytes > 1000


def test_the_parts_of_this_host_are_made_or_have_a_reason() -> None:
    """A real process that counts as an engine: its threads are told, and it is left alone."""
    title = "import time; time.sleep(60)"
    argv = ["VLLM::EngineCore", "-c", title, "--api-key", SECRET]
    child = subprocess.Popen(argv, executable=sys.executable)
    try:
        deadline = time.monotonic() + 5
        while b"VLLM::" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
            assert time.monotonic() < deadline
        parts = evidence.parts(engine())
        path = Path(evidence.keep("rigbook-engine", {}, parts))
        text = (path / "processes.txt").read_text()
        assert f"== {child.pid} " in text and f"-- thread {child.pid} " in text
        assert "State:" in text and "wchan:" in text and SECRET not in text
        assert child.poll() is None
        summary = json.loads((path / "summary.json").read_text())
        there = {name for name in parts if (path / name).exists()}
        assert there | set(summary["missing"]) == set(parts)
        assert summary["missing"]["metrics.txt"] == "Connection refused"
        assert sum(row.stat().st_size for row in path.iterdir()) < 9 * evidence.FILE_BYTES
        assert os.getuid() != 0 or "snapshot.json" in there
    finally:
        child.kill()
        child.wait()
