"""molecule/default's own converge.yml, with a deploy on this machine in place of the lab's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.rehearsal import ROOT

NOTHING = "- hosts: localhost\n  gather_facts: false\n  tasks: []\n"
ONCE = """
from pyinfra.operations import files

files.file(name="once", path={path!r})
"""
ALWAYS = """
from pyinfra.operations import server

server.shell(name="always", commands=["true"])
"""
FAILS = """
from pyinfra.operations import server

server.shell(name="fails", commands=["false"])
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converged project with the scenario as it is, and without hosts to make."""
    made = tmp_path_factory.mktemp("project")
    scenario = made / "molecule" / "default"
    scenario.mkdir(parents=True)
    for name in ("molecule.yml", "converge.yml"):
        shutil.copy(ROOT / "molecule" / "default" / name, scenario)
    (scenario / "create.yml").write_text(NOTHING)
    (made / "inventory").mkdir()
    (made / "inventory" / "lab.py").write_text('hosts = ["@local"]\n')
    (made / "deploys").mkdir()
    first = molecule(made, "converge", ONCE)
    assert first.returncode == 0 and "changed=1" in first.stdout, first.stdout
    return made


def molecule(project: Path, verb: str, deploy: str) -> subprocess.CompletedProcess[str]:
    """A verb of molecule in the project, whose serve.py is this deploy."""
    (project / "deploys" / "serve.py").write_text(deploy.format(path=str(project / "made")))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["molecule", verb], cwd=project, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={**os.environ, "PATH": path, "HOME": str(project), "NO_COLOR": "1",
             "MOLECULE_EPHEMERAL_DIRECTORY": str(project / "state")},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("deploy", "says"),
    [
        (ONCE, ""),
        (ALWAYS, "Idempotence test failed because of the following tasks"),
        (FAILS, "non-zero return code"),
    ],
    ids=["changes once", "changes always", "fails"],
)
def test_idempotence_is_pyinfras_own_no_change(project: Path, deploy: str, says: str) -> None:
    again = molecule(project, "idempotence", deploy)
    assert (again.returncode == 0) is not bool(says) and says in again.stdout, again.stdout
    assert says or "changed=0" in again.stdout, again.stdout
