"""README's way in, followed as it is typed: in a copy of the project, this machine as the rig."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from docs.site.stage import ROOT, ReadMe
from node import lease

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


REFUSES = '#!/bin/sh\necho "sudo: interactive authentication is required" >&2\nexit 1\n'


def look(project: Path, data: str, inventory: str = "@local") -> tuple[int, str]:
    """What the doctor says of one host whose sudo wants a password."""
    (project / "bin").mkdir()
    (project / "bin" / "sudo").write_text(REFUSES)
    (project / "bin" / "sudo").chmod(0o755)
    row = f'("{inventory}", {{"role": "head", "lan_address": "127.0.0.1", {data}}})'
    (project / "inventory" / "one.py").write_text(f"one = [{row}]\n")
    (project / "group_data" / "one.py").write_text('rig = "one"\nrecipe = "qwen3.6-27b"\n')
    path = f"{project / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["pyinfra", "-y", "inventory/one.py", "deploys/doctor.py"], cwd=project, text=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(project), "PYINFRA_PROGRESS": "off"},
        check=False, timeout=120, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_sudo_that_asks_is_named_with_its_fix(project: Path) -> None:
    """It was reported as `the node is off … power it on or cycle its power`."""
    status, said = look(project, '"ssh_user": "milo", "_sudo": True')
    assert status == 1
    assert "passwordless sudo is missing for milo: sudo: interactive authentication" in said, said
    assert "milo ALL=(ALL) NOPASSWD: ALL" in said, said
    assert "power" not in said and "the node is off" not in said, said


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone needs no sudo")
def test_root_needs_no_sudo(project: Path) -> None:
    _, said = look(project, '"ssh_user": "root"')
    assert "nodes-reachable" not in said and "sudo:" not in said, said


def test_a_rig_of_one_node_that_is_off_has_its_finding(project: Path) -> None:
    """It was `No hosts remaining!`."""
    gone = '"ssh_user": "milo", "ssh_hostname": "127.0.0.1", "ssh_port": 9'
    status, said = look(project, gone, "gone")
    assert status == 1
    assert "block nodes-reachable [gone]" in said and "deploys/wake.py" in said, said
    assert "No hosts remaining" not in said, said


def test_an_interrupt_ends_with_130_and_says_what_to_type(project: Path) -> None:
    """It was exit status 0 and `Exiting upon user request!`."""
    (project / "bin").mkdir()
    (project / "bin" / "sudo").write_text("#!/bin/sh\nexec sleep 30\n")
    (project / "bin" / "sudo").chmod(0o755)
    data = '"ssh_user": "milo", "_sudo": True'
    row = f'("@local", {{"role": "head", "lan_address": "127.0.0.1", {data}}})'
    (project / "inventory" / "one.py").write_text(f"one = [{row}]\n")
    (project / "group_data" / "one.py").write_text('rig = "one"\nrecipe = "qwen3.6-27b"\n')
    path = f"{project / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["pyinfra", "-y", "inventory/one.py", "deploys/doctor.py"], cwd=project, text=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(project), "PYINFRA_PROGRESS": "off"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        for line in run.stdout:
            if "Loading: deploys/doctor.py" in line:
                break
        time.sleep(1)
        run.send_signal(signal.SIGINT)
        said = run.stdout.read()
        assert run.wait(20) == 130, said
    assert "interrupted: this run left no change open" in said, said
    assert "pyinfra inventory/one.py deploys/doctor.py -y" in said, said


def test_a_host_that_hangs_up_at_once_is_one_line(project: Path) -> None:
    """fail2ban, MaxStartups or a proxy: paramiko logged two tracebacks of its thread."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    door.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        port = door.getsockname()[1]
        way = f'"ssh_user": "milo", "ssh_hostname": "127.0.0.1", "ssh_port": {port}'
        status, said = look(project, way, "gone")
    assert status == 1 and "Error reading SSH protocol banner" in said, said
    assert "Traceback" not in said, said


# What `lab down --all` does, with nothing of a lab to take down and no link to touch.
DOWN = """
import sys
from pathlib import Path
from lab import __main__ as lab
from lab.core import LabSettings
from lab import host
host.remove_links = lambda place, names: None
lab.others = lambda settings: []
settings = LabSettings(Path(sys.argv[1], "home"), Path(sys.argv[1], "cache"))
lab.change(settings, lab.parser().parse_args(["down", "--all"]))
lab.lifecycle.show_status(settings)
print(sorted({name.split(".")[0] for name in sys.modules} - sys.stdlib_module_names))
"""


def test_the_lab_is_looked_at_and_ended_by_any_python(tmp_path: Path) -> None:
    """`make lab-down` works without .venv: with the standard library alone (-S), as on a Debian."""
    words = [sys.executable, "-S", "-c", DOWN, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['__main__', 'lab']", done.stdout


# docs/reference/acting.md lists every unit that rigbook writes and that acts with nobody there.

UNITS = ROOT / "templates" / "etc" / "systemd" / "system"
# a timer or a path unit starts these: the page has the one that starts them
STARTED = {"rigbook-pair.service", "rigbook-watch.service", "rigbook-library.service",
           "rigbook-limit.service"}  # fmt: skip


def test_every_unit_is_on_the_page_with_a_way_to_end_it() -> None:
    templates = {re.sub(r"(\.venv)?\.j2$", "", path.name) for path in UNITS.glob("rigbook-*")}
    # the lease's unit is written by the node itself
    written = templates | {lease.LEASE_UNIT}
    page = (ROOT / "docs" / "reference" / "acting.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `rigbook-")]
    listed = {name for row in rows for name in re.findall(r"`(rigbook-\S+)`", row.split("|")[1])}
    assert listed == written - STARTED
    for row in rows:
        console = row.split("|")[6]
        for name in re.findall(r"`(rigbook-\S+)`", row.split("|")[1]):
            assert "sudo systemctl" in console and name in console, row
