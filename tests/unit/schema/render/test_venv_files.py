"""A venv recipe: what is refused, and the files that its unit runs from."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from facts.rignode import pack
from node.engine.config import parse
from node.rules.env_text import environment_text, environment_value
from schema.core.errors import SpecError
from schema.render import node_program
from tests.unit.builders.engine_files import unit_lines
from tests.unit.builders.spark_rig import ROOT, project, spark_plan
from tests.unit.builders.tower_rig import TOWER, VENV, tower_plan

HOSTILE = [
    "", "a b", 'a"b', "it's", "$HOME", "${X}", "`id`", "$(id)", "a\\b", "\\", "\\\\", "#x", ";x",
    " lead", "trail ", "%n", "é", "{}", "a=b", '"', '""',
]  # fmt: skip


def recipe(**changes: Any) -> dict[str, Any]:
    """The tower's recipe as plain data; changes replace top-level keys, `...` removes one."""
    data = yaml.safe_load((ROOT / "catalog/recipes/tiny-venv.yaml").read_text())
    return {k: v for k, v in {**copy.deepcopy(data), **changes}.items() if v is not ...}


def refused(folder: Path, data: dict[str, Any]) -> str:
    """What the loader says about a recipe."""
    with pytest.raises(SpecError) as caught:
        tower_plan(project(folder, data), recipe="broken")
    assert all(line.isprintable() for line in caught.value.problems)
    return str(caught.value)


def venv(**changes: Any) -> dict[str, Any]:
    """The recipe with other values under `venv`."""
    return recipe(venv={**recipe()["venv"], **changes})


def test_one_runtime_and_only_one(tmp_path: Path) -> None:
    both = recipe(container={"image": "x:1"})
    assert "container and venv" in refused(tmp_path / "a", both)
    assert "neither container nor venv" in refused(tmp_path / "b", recipe(venv=...))
    pair = recipe(multi_node={"nnodes": 2, "master_port": 29501})
    assert "multi_node" in refused(tmp_path / "c", pair)


def test_a_venv_does_not_serve_on_two_nodes() -> None:
    with pytest.raises(SpecError, match=r"wants 1 node\(s\), rig spark has 2"):
        spark_plan(recipe="tiny-venv")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "relative/venv"),
        ("path", "/opt/../etc"),
        ("path", "/opt/x\n[Service]"),
        ("user", "-x"),
        ("user", "a b"),
        ("user", "root\nExecStart=/x"),
        ("version", "-1"),
        ("version", "0.32.0; rm"),
        ("version", "latest"),
        ("wheels", "wheels"),
        ("pip_args", ["--target=/"]),
        ("pip_args", ["-e"]),
        ("pip_args", ["--pre; x"]),
        ("pip_args", ["--index-url"]),
        ("pip_args", ["--index-url=a b"]),
    ],
)
def test_values_of_a_venv_are_checked(tmp_path: Path, key: str, value: Any) -> None:
    assert f"venv.{key}" in refused(tmp_path, venv(**{key: value}))


def test_home_and_user_are_the_login_users(tmp_path: Path) -> None:
    data = venv(path="~/vllm env")
    made = tower_plan(project(tmp_path, data), recipe="broken", ssh_user="ada")
    spec = made.specs[TOWER]
    assert (spec.venv, spec.user) == ("/home/ada/vllm env", "ada")
    assert spec.argv[0] == "/home/ada/vllm env/bin/vllm"
    script = made.documents[TOWER][0].content
    assert "export PATH='/home/ada/vllm env'/bin:$PATH\n" in script
    assert "exec '/home/ada/vllm env/bin/vllm' serve " in script
    other = tower_plan(project(tmp_path / "x", venv(user="engine")), recipe="broken")
    assert other.specs[TOWER].user == "engine"


def test_bash_hands_the_program_exactly_the_spec(tmp_path: Path) -> None:
    """A double in the venv's place records its arguments."""
    data = venv(path=str(tmp_path / "a venv"))
    made = tower_plan(project(tmp_path / "p", data), recipe="broken")
    double = tmp_path / "a venv" / "bin" / "vllm"
    double.parent.mkdir(parents=True)
    double.write_text('#!/bin/sh\nprintf \'%s\\0\' "$0" "$@" "$PATH"\n')
    double.chmod(0o755)
    script = tmp_path / "serve.sh"
    script.write_text(made.documents[TOWER][0].content)
    done = subprocess.run(["/bin/bash", str(script)], capture_output=True, check=True, timeout=10)
    *argv, path = done.stdout.decode().split("\0")[:-1]
    assert argv == list(made.specs[TOWER].argv)
    assert path.startswith(f"{double.parent}:")


def test_unit_supervises_alone() -> None:
    made = tower_plan()
    unit = dict(unit_lines(made.documents[TOWER][2]))
    assert unit["OOMScoreAdjust"] == "500"
    assert unit["ExecStart"] == made.documents[TOWER][0].path
    assert unit["EnvironmentFile"] == made.documents[TOWER][1].path
    assert (unit["User"], unit["KillMode"]) == ("milo", "control-group")
    assert (unit["Restart"], unit["StartLimitBurst"]) == ("always", "3")
    clean = "+/usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert unit["ExecStartPre"] == f"{clean} {node_program.path()} prelaunch"
    assert unit["ExecStartPost"].startswith(f"{clean} MAINPID=${{MAINPID}} INVOCATION_ID=")
    assert "docker" not in made.documents[TOWER][2].content
    assert len(made.documents[TOWER]) == 4
    assert made.requests[TOWER].units == ("rigbook-engine.service",)
    assert made.requests[TOWER].images == ()
    assert [(v.path, v.user) for v in made.requests[TOWER].venvs] == [(VENV, "milo")]


def test_what_loads_code_reaches_the_engine_alone(tmp_path: Path) -> None:
    """The unit's environment is that of root's lines too, and glibc obeys it before env -i does."""
    mine = {"LD_LIBRARY_PATH": "/home/milo/a b", "LD_PRELOAD": "/home/milo/x.so", "OMP": "1"}
    made = tower_plan(project(tmp_path, {**venv(), "env": mine}), recipe="broken")
    script, environment, *_ = (row.content for row in made.documents[TOWER])
    assert "export LD_LIBRARY_PATH='/home/milo/a b'\nexport LD_PRELOAD=/home/milo/x.so\n" in script
    assert "LD_" not in environment and "OMP=1" in environment


def test_a_program_of_root_reads_nothing_of_a_user(tmp_path: Path) -> None:
    """The zipapp as the unit starts it: a module in PYTHONPATH or HOME runs as root otherwise."""
    program, ran = tmp_path / "rignode.pyz", tmp_path / "ran"
    program.write_bytes(pack.zipapp_bytes())
    program.chmod(0o755)
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for folder in (tmp_path / "modules", tmp_path / ".local" / site):
        folder.mkdir(parents=True)
        (folder / "json.py").write_text(f"open({str(ran)!r}, 'w')\n")
        (folder / "x.pth").write_text(f"import os; open({str(ran)!r}, 'w')\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path),
               "PYTHONPATH": str(tmp_path / "modules")}  # fmt: skip
    subprocess.run([program, "no verb"], env=environ, capture_output=True, timeout=20)
    assert not ran.exists()


def test_node_reads_its_file() -> None:
    engine = parse(json.loads(tower_plan().documents[TOWER][3].content))
    assert (engine.container, engine.image, engine.fabric, engine.peers) == (None, None, None, ())
    assert engine.venv is not None
    assert engine.venv == (VENV, "milo", "0.32.0+cpu")
    assert engine.memory.cpu_bytes == 4 * 1024**3, "two ranks, a cache each"


def test_a_container_has_no_venv_in_its_file() -> None:
    engine = parse(json.loads(spark_plan().documents["spark1"][3].content))
    assert engine.venv is None and engine.container == "rigbook-engine"


@pytest.mark.parametrize("value", HOSTILE)
def test_environment_values_come_back(value: str) -> None:
    written = environment_value(value)
    assert environment_text(written) == value
    assert "\n" not in written


if shutil.which("systemd-analyze"):

    @pytest.mark.parametrize("name", ["tiny-venv", "qwen3.6-27b"])
    def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
        text = tower_plan(recipe=name).documents[TOWER][2].content
        path = tmp_path / "rigbook-engine.service"
        # Programs that need not be on this machine get a stand-in.
        for program in (node_program.path(), "/etc/rigbook/engine/serve.sh"):
            text = text.replace(program, "/bin/true")
        path.write_text(text.replace("User=milo", "User=root"))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert [line for line in done.stderr.splitlines() if path.name in line] == []
