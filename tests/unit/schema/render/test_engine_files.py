"""The launch script, the environment file and the unit."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from schema.core.errors import SpecError
from schema.core.quoting import systemd_argument
from schema.desired.plan import Document
from schema.render import node_program
from schema.render.engine_files import docker_run, documents
from tests.unit.builders.engine_files import argv_of_script, exec_start, unit_lines
from tests.unit.builders.spark_rig import changed, project, spark_plan


@pytest.mark.parametrize("recipe", ["deepseek-v4-flash", "tiny"])
@pytest.mark.parametrize("node", ["spark1", "spark2"])
def test_script_hands_vllm_exactly_the_spec(tmp_path: Path, recipe: str, node: str) -> None:
    plan = spark_plan(recipe=recipe)
    script = plan.documents[node][0]
    assert (script.path, script.mode) == ("/etc/rigbook/engine/serve.sh", "0755")
    assert argv_of_script(script, tmp_path) == list(plan.specs[node].argv)


def test_script_has_one_flag_a_line_and_says_whose_it_is() -> None:
    plan = spark_plan(profile="throughput")
    lines = plan.documents["spark2"][0].content.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert (
        lines[2] == "# recipe deepseek-v4-flash, profile throughput, worker (rank 1) of rig spark"
    )
    assert lines[3] == "set -euo pipefail"
    flags = [argument for argument in plan.specs["spark2"].argv if argument.startswith("--")]
    assert [line.split()[0] for line in lines[5:]] == flags


def test_environment_file_is_raw_and_private() -> None:
    plan = spark_plan(recipe="tiny")
    file = plan.documents["spark2"][1]
    assert (file.path, file.mode) == ("/etc/rigbook/engine/engine.env", "0600")
    expected = [f"{name}={value}" for name, value in plan.specs["spark2"].environ.items()]
    assert file.content == "\n".join(expected) + "\n"
    assert "VLLM_HOST_IP=10.0.0.2\n" in file.content


@pytest.mark.parametrize(
    "environ", [{"A": "x\ny"}, {"#A": "x"}, {"A=B": "x"}, {"": "x"}, {"A B": "x"}, {"A\n": "x"}]
)
def test_environment_that_docker_would_misread_is_refused(environ: dict[str, str]) -> None:
    plan = spark_plan()
    head = plan.rig.head
    spec = replace(plan.specs[head.name], environ=environ)
    with pytest.raises(SpecError, match="env"):
        documents(plan.rig, head, plan.recipe, plan.profile, spec)


def test_unit_runs_docker_with_exactly_the_groups() -> None:
    plan = spark_plan()
    unit = plan.documents["spark1"][2]
    groups = docker_run(plan.recipe, plan.profile, plan.specs["spark1"])
    assert exec_start(unit) == list(chain.from_iterable(groups))
    assert (unit.path, unit.mode) == ("/etc/systemd/system/rigbook-engine.service", "0644")


def test_unit_supervises_alone() -> None:
    unit = dict(unit_lines(spark_plan().documents["spark1"][2]))
    assert unit["Restart"] == "always"
    assert unit["StartLimitBurst"] == "3"
    assert unit["WantedBy"] == "multi-user.target docker.service"
    assert unit["Requires"] == "docker.service"
    assert unit["Environment"] == "DOCKER_HOST=unix:///var/run/docker.sock"
    assert unit["After"] == "docker.service network-online.target"
    assert " --restart no " in unit["ExecStart"]
    assert " --init " in unit["ExecStart"]
    assert " --pull never " in unit["ExecStart"]
    assert " --oom-score-adj 500 " in unit["ExecStart"]


def test_container_settings_are_the_recipes(tmp_path: Path) -> None:
    data = changed(
        ("container",),
        {
            "image": "name@sha256:0a1b",
            "ipc": "private",
            "gpus": '"device=0,1"',
            "shm_size": "16g",
            "volumes": [{"source": "~", "target": "/home of it", "read_only": True}],
        },
    )
    plan = spark_plan(project(tmp_path, data), recipe="broken", ssh_user="root")
    command = exec_start(plan.documents["spark1"][2])
    assert command[command.index("--gpus") + 1] == '"device=0,1"'
    assert command[command.index("--ipc") + 1] == "private"
    assert command[command.index("--shm-size") + 1] == "16g"
    assert "/root:/home of it:ro" in command
    assert command[-3:] == ["/bin/bash", "name@sha256:0a1b", "/rigbook/serve.sh"]
    assert "--privileged" not in command
    assert "--runtime" not in command


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("plain-1.2:/x,y=z@w+~", "plain-1.2:/x,y=z@w+~"),
        ("a b", '"a b"'),
        ("", '""'),
        (";", '";"'),
        ("%n", "%%n"),
        ("$HOME", "$$HOME"),
        ("${X} %i", '"$${X} %%i"'),
        ('"', '"\\""'),
        ("'", '"\'"'),
        ("a\\", '"a\\\\"'),
        ("\\x41", '"\\\\x41"'),
    ],
)
def test_systemd_quoting(value: str, quoted: str) -> None:
    assert systemd_argument(value) == quoted


def test_systemd_has_no_form_for_a_newline() -> None:
    with pytest.raises(ValueError, match="newline"):
        systemd_argument("a\nb")


def verified(unit: Document, folder: Path) -> str:
    """What `systemd-analyze verify` says about a unit (empty: nothing wrong)."""
    path = folder / Path(unit.path).name
    # docker and rignode need not be on this machine: units and programs get stand-ins.
    text = unit.content.replace("/usr/bin/docker", "/bin/true")
    text = text.replace(node_program.path(), "/bin/true")
    path.write_text(text.replace("docker.service", "basic.target"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if path.name in line]
    return "\n".join(said)


if shutil.which("systemd-analyze"):

    @pytest.mark.parametrize("node", ["spark1", "spark2"])
    def test_systemd_accepts_the_units(tmp_path: Path, node: str) -> None:
        files = {Path(document.path).name: document for document in spark_plan().documents[node]}
        assert verified(files["rigbook-engine.service"], tmp_path) == ""
        assert verified(files["rigbook-pair.service"], tmp_path) == ""
        assert verified(files["rigbook-pair.timer"], tmp_path) == ""

    def test_systemd_check_finds_a_broken_unit(tmp_path: Path) -> None:
        unit = spark_plan().documents["spark2"][2]
        broken = replace(unit, content=unit.content.replace("Type=exec", "Type=exce"))
        assert "exce" in verified(broken, tmp_path)
