"""What apt and pip warn of stays off the screen; what made them fail is shown whole."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEBCONF = "debconf: delaying package configuration, since apt-utils is not installed"
IGNORED = "WARNING: Location 'file:///nowhere' is ignored: it is neither a file nor a directory."
# Each says a warning on stderr and more on stdout, and fails on its second command if it is to.
APT = f"#!/bin/sh\necho '{DEBCONF}' >&2; echo Unpacking\n[ $1 = update ] || exit $APT_STATUS\n"
PIP = f'#!/bin/sh\n[ "$2" = pip ] || exit 0\necho "{IGNORED}" >&2; echo reason; exit $PIP_STATUS\n'
VENV = (
    '#!/bin/sh\n[ "$2" = venv ] || exit 0\n'
    'mkdir -p "$3/bin" && cp "$(dirname "$0")/pip" "$3/bin/python"\n'
)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of stand-ins for apt-get, for a Python that makes venvs, and for a venv's Python."""
    for name, text in (("apt-get", APT), ("pip", PIP), ("python3", VENV)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(programs: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command with the stand-ins first in PATH."""
    path = f"{programs}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "APT_STATUS": "0", "PIP_STATUS": "0", **more}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)


def setup(programs: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """`make setup` into a venv of the test's own."""
    made = (f"VENV={programs}/venv", f"PYTHON={programs}/python3", "setup")
    return run(programs, "make", "--no-print-directory", *made, **more)


def test_pips_warnings_stay_off_the_screen(programs: Path) -> None:
    done = setup(programs)
    assert done.returncode == 0, done.stderr
    assert "virtual environment" in done.stdout and done.stderr == ""
    assert "ignored" not in done.stdout and "reason" not in done.stdout


def test_a_pip_that_fails_is_shown_whole(programs: Path) -> None:
    done = setup(programs, PIP_STATUS="3")
    assert done.returncode != 0
    assert IGNORED in done.stderr and "reason\n" in done.stderr and "exit status 3" in done.stderr
    assert not (programs / "venv/.base").exists()


@pytest.fixture
def bare(programs: Path) -> Path:
    """A root's machine on which every tool is missing."""
    (programs / "id").write_text("#!/bin/sh\necho 0\n")
    (programs / "id").chmod(0o755)
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    return programs


def test_debconfs_lines_stay_off_the_screen(bare: Path) -> None:
    done = run(bare, "lab/install-tools", "lab", PATH=str(bare))
    assert done.returncode == 0 and done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith("setup: installing mmdebstrap systemd-container")


def test_an_apt_that_fails_is_shown_whole(bare: Path) -> None:
    done = run(bare, "lab/install-tools", "lab", PATH=str(bare), APT_STATUS="100")
    assert done.returncode == 100
    assert DEBCONF in done.stderr and "Unpacking" in done.stderr


def test_every_install_is_quiet() -> None:
    for name in ("Makefile", "lab/install-tools", ".ci/run"):
        for line in (ROOT / name).read_text().splitlines():
            if ("apt-get" in line or "pip install" in line) and not line.lstrip().startswith("#"):
                assert "quiet" in line or "command -v" in line or "echo" in line, f"{name}: {line}"
