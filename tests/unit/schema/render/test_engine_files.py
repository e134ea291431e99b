"""The launch script, the environment file and the unit."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from facts import pack
from gates import gpu
from gates.gpu import gpus_needed
from node.engine import answer, evidence, peer, silence, start, watch
from node.engine.config import parse_engine
from node.engine.silence import Limits, Silence, parse_watch
from node.rules.text import environment_text, environment_value
from schema import render_unit
from schema.core import SpecError, systemd_argument
from schema.keys import WatchData
from schema.load import host_data, plan
from schema.plan import Document, EngineSpec, Plan, jit_caches_kept, key
from schema.recipe import ContainerSpec
from schema.render_engine import (
    FABRIC_WAIT_S,
    MARGIN_S,
    devices,
    docker_run,
    gpu_arguments,
    limits,
    node_file,
    watch_documents,
)
from schema.render_engine import documents as render_engine_documents
from tests.unit.builders.engine_parts import argv_of_script, exec_start, unit_lines
from tests.unit.builders.rigs import ROOT, TOWER, VENV, host, project, spark_plan, tower_plan
from tests.unit.builders.rigs import changed as rigs_changed


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
        render_engine_documents(plan.rig, head, plan.recipe, plan.profile, spec)


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
    data = rigs_changed(
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
    text = text.replace(render_unit.program_path(), "/bin/true")
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


# A venv recipe: what is refused, and the files that its unit runs from.

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


def test_unit_supervises_alone_venv_files() -> None:
    made = tower_plan()
    unit = dict(unit_lines(made.documents[TOWER][2]))
    assert unit["OOMScoreAdjust"] == "500"
    assert unit["ExecStart"] == made.documents[TOWER][0].path
    assert unit["EnvironmentFile"] == made.documents[TOWER][1].path
    assert (unit["User"], unit["KillMode"]) == ("milo", "control-group")
    assert (unit["Restart"], unit["StartLimitBurst"]) == ("always", "3")
    clean = "+/usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert unit["ExecStartPre"] == f"{clean} {render_unit.program_path()} prelaunch"
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
    engine = parse_engine(json.loads(tower_plan().documents[TOWER][3].content))
    assert (engine.container, engine.image, engine.fabric, engine.peers) == (None, None, None, ())
    assert engine.venv is not None
    assert engine.venv == (VENV, "milo", "0.32.0+cpu")
    assert engine.memory.cpu_bytes == 4 * 1024**3, "two ranks, a cache each"


def test_a_container_has_no_venv_in_its_file() -> None:
    engine = parse_engine(json.loads(spark_plan().documents["spark1"][3].content))
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
        for program in (render_unit.program_path(), "/etc/rigbook/engine/serve.sh"):
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


# The watch's files: node reads the configuration, systemd accepts the units.


def documents(**changes: object) -> tuple[Document, ...]:
    """The documents of a watch on spark1."""
    return watch_documents(
        spark_plan(), "spark1", host_data("spark1", host(1, **changes), {}, WatchData)
    )


def test_node_reads_what_is_rendered() -> None:
    made = parse_watch(json.loads(documents(webhook="https://h/x", misses=5)[0].content))
    assert (made.misses, made.webhook) == (5, "https://h/x")
    assert made.endpoint.url == "http://192.168.1.11:8000"
    assert (made.endpoint.model, made.endpoint.reasoning) == ("deepseek-v4-flash", True)
    asked = parse_watch(json.loads(documents(url="http://gateway:4000/", model="best")[0].content))
    assert (asked.endpoint.url, asked.endpoint.model) == ("http://gateway:4000", "best")


@pytest.mark.parametrize(("flags", "wanted"), [
    # the Spark's balanced profile: 8192 or 16384 tokens a step, 131072 of context
    ({"max_model_len": 131072, "max_num_batched_tokens": 16384}, (164, 1311)),
    ({"max_model_len": 65536, "max_num_batched_tokens": 8192}, (120, 656)),
    ({"max_model_len": 131072, "max_num_batched_tokens": 8192, "enable_chunked_prefill": False},
     (1311, 1311)),
    ({"max_model_len": 512}, (120, 120)),
    # what the recipe does not say, or not as a number, is taken as long
    ({}, (164, 2622)),
    ({"max_model_len": "128k"}, (164, 2622)),
])  # fmt: skip
def test_silence_is_longer_than_the_longest_prefill(
    flags: dict[str, Any], wanted: tuple[int, int]
) -> None:
    assert limits(flags) == wanted


def test_only_the_own_engine_is_judged_and_restarted() -> None:
    def silence(**changes: object) -> object:
        return parse_watch(json.loads(documents(**changes)[0].content)).silence

    assert silence() == Silence(Limits(164, 1311), False)
    assert silence(restart=True, silent_s=90) == Silence(Limits(90, 90), True)
    assert silence(url="http://gateway:4000") is None
    worker = host_data("spark2", host(2), {}, WatchData)
    rendered = json.loads(watch_documents(spark_plan(), "spark2", worker)[0].content)
    assert rendered["silence"] is None
    made = parse_watch(json.loads(documents(textfile="/srv/a.prom")[0].content))
    assert made.textfile == "/srv/a.prom"


def test_only_root_may_read_the_configuration() -> None:
    assert [document.mode for document in documents()] == ["0600", "0644", "0644"]
    others = documents(webhook="https://h/T0P-S3CRET")[1:]
    assert not any("T0P-S3CRET" in document.content for document in others)


def test_the_service_outlasts_a_look() -> None:
    service = dict(unit_lines(documents()[1]))
    longest = watch.ANSWER_S + silence.DELIVER_S + answer.WEBHOOK_TIMEOUT_S
    longest += 2 * answer.METRICS_TIMEOUT_S + evidence.PART_S + evidence.GPU_S
    assert int(service["TimeoutStartSec"]) > longest


@pytest.mark.parametrize("interval", [10, 60])
def test_the_timer_has_the_interval(interval: int) -> None:
    timer = dict(unit_lines(documents(interval=interval)[2]))
    assert timer["OnUnitActiveSec"] == timer["OnActiveSec"] == str(interval)


if shutil.which("systemd-analyze"):

    def test_systemd_accepts_the_watch_units(tmp_path: Path) -> None:
        for document in documents()[1:]:
            # a timer is checked together with the service that it starts
            text = document.content.replace(render_unit.program_path(), "/bin/true")
            (tmp_path / Path(document.path).name).write_text(text)
        assert [verified(document, tmp_path) for document in documents()[1:]] == ["", ""]


# What `docker run` is told of GPUs, and that the rest of docker's words stay as they were.


@pytest.mark.parametrize(
    ("runtime", "gpus", "wanted"),
    [
        (None, None, []),
        (None, "all", ["--gpus all"]),
        ("nvidia", "all", ["--gpus all"]),
        ("nvidia", None, ["--runtime nvidia"]),
        ("kata", "all", ["--runtime kata", "--gpus all"]),
        (None, "device=1", ["--gpus device=1"]),
        (None, "nvidia.com/gpu=all", ["--device nvidia.com/gpu=all"]),
        ("nvidia", "nvidia.com/gpu=0,nvidia.com/gpu=1",
         ["--device nvidia.com/gpu=0", "--device nvidia.com/gpu=1"]),
    ],
)  # fmt: skip
def test_gpus_runtime_and_cdi(runtime: str | None, gpus: str | None, wanted: list[str]) -> None:
    box = ContainerSpec(image="vllm:1", runtime=runtime, gpus=gpus)
    assert [" ".join(group) for group in gpu_arguments(box)] == wanted


def test_the_engines_docker_run_has_them() -> None:
    plan = spark_plan()
    groups = docker_run(plan.recipe, plan.profile, plan.specs["spark1"])
    assert ["--gpus", "all"] in groups and not any("--runtime" in group for group in groups)


# Which GPUs an engine gets: of the container's option and the variables that CUDA reads.

UUID = "GPU-5eed0000-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("gpus", "environ", "wanted"),
    [
        ("all", {}, None),
        (None, {}, None),
        ("2", {}, None),  # docker's count: which ones is docker's choice
        ("device=1", {}, ("1",)),
        ('"device=1,3"', {}, ("1", "3")),
        (f"device={UUID}", {}, (UUID,)),
        ("nvidia.com/gpu=all", {}, None),
        (f"nvidia.com/gpu=1,nvidia.com/gpu={UUID}", {}, ("1", UUID)),
        ("all", {"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ("device=2,3", {"CUDA_VISIBLE_DEVICES": "1"}, ("3",)),
        ("all", {"NVIDIA_VISIBLE_DEVICES": "1"}, ("1",)),
        ("all", {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_the_gpus_that_an_engine_gets(
    gpus: str | None, environ: dict[str, str], wanted: tuple[str, ...] | None
) -> None:
    plan = spark_plan()
    node = plan.rig.head
    assert plan.recipe.container is not None
    box = plan.recipe.container.model_copy(update={"gpus": gpus})
    recipe = plan.recipe.model_copy(update={"container": box})
    spec = dataclasses.replace(plan.specs[node.name], environ=environ)
    assert devices(recipe, spec) == wanted
    said = json.loads(node_file(plan.rig, node, recipe, spec))["memory"].get("devices")
    assert said == (None if wanted is None else list(wanted))


# The engine's start as systemd and node see it: waits, limits, node.json, the pair check.


def test_only_the_heads_start_waits_for_an_answer() -> None:
    head, worker = (unit_lines(spark_plan().documents[n][2]) for n in ("spark1", "spark2"))
    for lines in (head, worker):
        assert ("ExecStartPre", f"{render_unit.program_path()} prelaunch") in lines
        # in this order, the first without "-": where it fails, systemd skips the second
        assert [value for key, value in lines if key == "ExecStopPost"] == [
            "/usr/bin/systemctl -q is-active docker.service",
            f"-{render_unit.program_path()} container remove",
        ]
        assert not any("docker rm" in value or "sh -c" in value for _, value in lines)
    assert ("ExecStartPost", f"{render_unit.program_path()} answer") in head
    assert "ExecStartPost" not in dict(worker)


@pytest.mark.parametrize("recipe", ["deepseek-v4-flash", "tiny"])
@pytest.mark.parametrize("node", ["spark1", "spark2"])
def test_start_limit_outlasts_three_starts_that_fail_late(recipe: str, node: str) -> None:
    """The latest failure: all waits, the whole budget, then both stop phases and the pause."""
    plan = spark_plan(recipe=recipe)
    unit = dict(unit_lines(plan.documents[node][2]))
    latest = int(unit["TimeoutStartSec"]) + 2 * int(unit["TimeoutStopSec"])
    starts = int(unit["StartLimitBurst"])
    window = int(unit["StartLimitIntervalSec"])
    assert window > starts * (latest + int(unit["RestartSec"]))
    budget = plan.recipe.expect.start_budget_s
    waits = start.DOCKER_WAIT_S + start.MEMORY_WAIT_S + FABRIC_WAIT_S
    # the head waits for its peers before, and for its own answer after
    phases = 2 * budget if node == "spark1" else budget
    assert int(unit["TimeoutStartSec"]) >= waits + phases + MARGIN_S


def test_a_worker_comes_back_after_its_head_has_seen_it_gone() -> None:
    """Sooner, it would join the head that is about to be restarted."""
    worker = dict(unit_lines(spark_plan().documents["spark2"][2]))
    timer = dict(unit_lines(spark_plan().documents["spark1"][5]))
    looks = (peer.PEER_MISSES + 1) * (int(timer["OnUnitActiveSec"]) - 1)
    assert int(worker["RestartSec"]) > looks - int(timer["OnUnitActiveSec"])
    assert int(worker["RestartSec"]) > peer.BROKEN_S + int(timer["OnUnitActiveSec"])


@pytest.mark.parametrize("recipe", ["deepseek-v4-flash", "tiny"])
def test_node_reads_the_file_that_is_rendered(recipe: str) -> None:
    plan = spark_plan(recipe=recipe)
    for node in plan.rig.nodes:
        file = plan.documents[node.name][3]
        assert (file.path, file.mode) == ("/etc/rigbook/engine/node.json", "0644")
        engine = parse_engine(json.loads(file.content))
        assert (engine.role, engine.rank, engine.node) == (node.role, node.rank, node.name)
        assert engine.fabric is not None and engine.fabric.address == str(node.fabric_address)
        assert engine.master == ("10.0.0.1", 29501)
        assert (engine.endpoint is None) == (node.role == "worker")
        assert engine.start_budget_s == plan.recipe.expect.start_budget_s
        assert not any(value in file.content for value in plan.specs[node.name].environ.values()
                       if len(value) > 12)  # fmt: skip
    head = parse_engine(json.loads(plan.documents["spark1"][3].content))
    assert head.endpoint is not None and head.endpoint.url == "http://192.168.1.11:8000"
    assert (head.peers, head.ports) == (("10.0.0.2",), (8000, 29501))


def test_node_and_gates_ask_for_the_same_memory() -> None:
    """The rule stands in both, because node may not import gates."""
    for recipe in ("deepseek-v4-flash", "tiny"):
        plan = spark_plan(recipe=recipe)
        node = plan.rig.head
        need = parse_engine(json.loads(plan.documents[node.name][3].content)).memory
        assert need.gpu_memory_utilization == gpu.utilization(plan, node)
        if plan.recipe.expect.needs_nvidia:
            assert need.gpus == gpus_needed(plan, node)
        else:
            assert need.cpu_bytes == gpu._cpu_need(plan, node)


@pytest.mark.parametrize("value", ["much", 1.5, 0, -1])
def test_a_memory_share_that_is_none_is_refused(tmp_path: Path, value: object) -> None:
    recipe = rigs_changed(("vllm_serve", "gpu_memory_utilization"), value)
    with pytest.raises(SpecError, match="gpu_memory_utilization"):
        spark_plan(project(tmp_path, recipe), recipe="broken")


def test_a_rig_of_one_node_has_no_pair_to_check(tmp_path: Path) -> None:
    data = rigs_changed(("vllm_serve", "tensor_parallel_size"), 1)
    del data["multi_node"]
    data["env"] = {}
    alone = plan({"spark1": host(1, recipe="broken")}, None, project(tmp_path, data))
    files = alone.documents["spark1"]
    assert len(files) == 4
    engine = parse_engine(json.loads(files[3].content))
    assert (engine.fabric, engine.master, engine.peers) == (None, None, ())
    assert alone.requests["spark1"].units == ("rigbook-engine.service",)


def test_the_pair_check_is_quiet_and_runs_by_its_timer() -> None:
    service, timer = (dict(unit_lines(d)) for d in spark_plan().documents["spark2"][4:])
    assert service["ExecStart"] == f"{render_unit.program_path()} pair"
    assert (service["Type"], service["LogLevelMax"]) == ("oneshot", "notice")
    assert (timer["OnUnitActiveSec"], timer["WantedBy"]) == ("15", "timers.target")


# Where an engine's compiled kernels are kept: by the recipe where it says so, else by rigbook.

OURS = "/var/cache/rigbook/jit/dgx-vllm-eugr-nightly-latest-e5f44a89"
ALL = {
    "VLLM_CACHE_ROOT": "/rigbook/jit/vllm",
    "TRITON_CACHE_DIR": "/rigbook/jit/triton",
    "TILELANG_CACHE_DIR": "/rigbook/jit/tilelang",
    "DG_JIT_CACHE_DIR": "/rigbook/jit/deep_gemm",
    "FLASHINFER_WORKSPACE_BASE": "/rigbook/jit/flashinfer",
}


def changed(folder: Path, **changes: Any) -> Plan:
    """The plan of the seed's recipe with these keys of `container`, `env` and so on replaced."""
    data = yaml.safe_load((ROOT / "catalog/recipes/deepseek-v4-flash.yaml").read_text())
    for name, value in changes.items():
        data[name] = {**data[name], **value} if isinstance(value, dict) else value
    return spark_plan(project(folder, data), recipe="broken")


def of(plan: Plan) -> tuple[EngineSpec, dict[str, str]]:
    """The head's engine, and those of its variables that place a cache."""
    spec = plan.specs["spark1"]
    return spec, {name: value for name, value in spec.environ.items() if name in ALL}


def test_the_specs_have_them() -> None:
    """Mounts of the recipe stay: a warm cache is worth more than one place for all."""
    spec, environ = of(spark_plan())
    assert environ == {name: ALL[name] for name in ("TRITON_CACHE_DIR", "TILELANG_CACHE_DIR")}
    assert spec.volumes[-1] == (OURS, "/rigbook/jit", False)
    assert spec.jit_folders == ("/var/cache/rigbook", "/var/cache/rigbook/jit", OURS)
    assert jit_caches_kept(spec) == {
        "vllm": "/home/milo/.cache/vllm",
        "triton": f"{OURS}/triton",
        "tilelang": f"{OURS}/tilelang",
        "deep_gemm": "/home/milo/.cache/vllm/deep_gemm",
        "flashinfer": "/home/milo/.cache/flashinfer",
    }
    asked = spark_plan().requests["spark1"].files
    assert {OURS, *jit_caches_kept(spec).values()} <= set(asked)


def test_a_recipe_that_mounts_none_gets_all(tmp_path: Path) -> None:
    spec, environ = of(changed(tmp_path, container={"volumes": []}))
    assert environ == ALL and spec.volumes == ((OURS, "/rigbook/jit", False),)
    assert set(jit_caches_kept(spec).values()) == {
        f"{OURS}/{name}" for name in ("vllm", "triton", "tilelang", "deep_gemm", "flashinfer")
    }


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        # the whole home's cache, as eugr's README mounts it for the hub
        ({"container": {"volumes": [{"source": "~/.cache", "target": "/root/.cache"}]}},
         {"TRITON_CACHE_DIR", "TILELANG_CACHE_DIR"}),
        ({"container": {"volumes": [{"source": "/c", "target": "/root"}]}}, set()),
        ({"container": {"volumes": [{"source": "/c", "target": "/home/v/.triton/cache"}]}},
         set(ALL) - {"TRITON_CACHE_DIR"}),
        # nothing can be kept behind a mount that is read only
        ({"container": {"volumes": [{"source": "/c", "target": "/root", "read_only": True}]}},
         set(ALL)),
        ({"container": {"jit_caches": False}}, set()),
    ],
)  # fmt: skip
def test_what_the_recipe_places_is_left_to_it(
    tmp_path: Path, changes: dict[str, Any], wanted: set[str]
) -> None:
    _, environ = of(changed(tmp_path, **changes))
    assert set(environ) == wanted


def test_a_variable_of_the_recipe_wins(tmp_path: Path) -> None:
    env = {"TRITON_CACHE_DIR": "/models/triton", "TILELANG_CACHE_DIR": "/tmp/tilelang"}
    spec, environ = of(changed(tmp_path, env=env))
    assert environ == env and spec.jit_folders == ()
    found = jit_caches_kept(spec)
    assert found["triton"] == "/home/milo/models/triton"
    assert "tilelang" not in found, "it dies with the container, and nobody said otherwise"


def test_a_variable_that_must_not_be_set_is_not(tmp_path: Path) -> None:
    rule = {"name": "TRITON_CACHE_DIR", "reason": "a broken build"}
    _, environ = of(changed(tmp_path, forbidden_env=[rule]))
    assert set(environ) == {"TILELANG_CACHE_DIR"}


def test_engines_that_compile_nothing_get_none() -> None:
    spec, environ = of(spark_plan(recipe="tiny"))
    assert environ == {} and spec.jit_folders == () and jit_caches_kept(spec) == {}


@pytest.mark.parametrize("image", [
    "vllm:1", "ghcr.io/a/vllm:1", f"ghcr.io/a/vllm@sha256:{'ab' * 32}", "localhost:5000/a/vllm",
])  # fmt: skip
def test_each_image_has_a_folder_of_its_own(image: str) -> None:
    assert key(image) != key(f"{image}x") and "/" not in key(image) and ":" not in key(image)
