"""README's way in, followed as it is typed: in a copy of the project, this machine as the rig."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site.stage import ReadMe
from tests.unit.house.test_docs import ROOT

# What only a clone shows: `bash .ci/run` begins with a clean one, whose `make demo` makes `setup`.
CLONE = ("git clone ", "make setup", ". .venv/bin/activate")
PARTS = (
    "config.py", "catalog", "deploys", "facts", "gates", "group_data", "inventory", "lab", "node",
    "operations", "schema", "templates",
)  # fmt: skip


def blocks() -> list[str]:
    """The terminal's blocks of README's Install."""
    part = ReadMe((ROOT / "README.md").read_text()).part("Install")
    return re.findall(r"```\n(.+?)```", part, re.S)


def test_the_first_block_makes_the_clone_and_nothing_else() -> None:
    clone, _ = blocks()
    lines = clone.splitlines()
    assert len(lines) == len(CLONE)
    assert all(line.startswith(begin) for line, begin in zip(lines, CLONE, strict=True)), lines


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What a run needs of the project, without an inventory of anybody's own."""
    for name in PARTS:
        if (ROOT / name).is_dir():
            skipped = shutil.ignore_patterns("__pycache__", "desk.py")
            shutil.copytree(ROOT / name, tmp_path / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_a_first_look_is_as_the_page_says(project: Path) -> None:
    """The doctor looks at the machine that the tests run on, and changes nothing."""
    _, look = blocks()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e"], input=look, cwd=project, text=True, check=False, timeout=120,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(project)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout and "[@local] Connected" in done.stdout, done.stdout
    ends = r"\d+ finding\(s\) block serving, the likeliest cause first: [\w-]+ on @local\s*$"
    assert re.search(ends, done.stdout), done.stdout
