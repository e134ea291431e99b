"""A unit's drop-in: typed directives alone, and a text that systemd reads as it was meant."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from node.engine.config import parse_engine
from node.kernel import grub_step
from schema import render_unit
from schema.core import SpecError, known_keys
from schema.keys import HostData, KernelData, UnitData, data_type_of
from schema.load import host_data, plan
from schema.plan import Plan, engine_spec
from schema.render_engine import TEMPLATES, UNIT_PATH, docker_run
from schema.render_host import candidate_documents, pin_documents
from schema.render_unit import HEADER, DropIn
from tests.unit.builders.engine_parts import argv_of_script, exec_start, unit_lines
from tests.unit.builders.rigs import (
    NAMES,
    ROOT,
    changed,
    four_plan,
    host,
    project,
    spark_plan,
    tiny,
)


def data(**changes: object) -> UnitData:
    """The head's data with these keys of --data."""
    return host_data("spark1", host(1, **changes), {}, UnitData)


def test_the_text_resets_exec_start_and_keeps_each_directive_in_its_section() -> None:
    made = data(
        exec_start="/usr/bin/docker exec vllm_ds4 bash /workspace/vllm-head.sh",
        restart="on-failure",
        restart_sec=30,
        environment="A=1,B=two",
    ).override()
    assert made.text() == HEADER + (
        "\n[Service]\nExecStart=\n"
        "ExecStart=/usr/bin/docker exec vllm_ds4 bash /workspace/vllm-head.sh\n"
        'Restart=on-failure\nRestartSec=30\nEnvironment="A=1"\nEnvironment="B=two"\n'
    )
    assert data().override().empty and data(restart_sec=0).override() != DropIn()
    assert "ExecStart" not in data(restart="always").override().text()


@pytest.mark.parametrize(
    ("given", "argv"),
    [
        ("/a/b --x 1", ("/a/b", "--x", "1")),
        (["/a/b", "two words"], ("/a/b", "two words")),
        ("/a/b 'two words' \"$(touch /x)\" `id` ; rm", None),
        ("/a/b '$(touch /x);' '`id`' 100% $HOME", ("/a/b", "$(touch /x);", "`id`", "100%",
                                                    "$HOME")),
    ],
)  # fmt: skip
def test_a_command_line_is_split_and_nothing_in_it_is_run(given: object, argv: object) -> None:
    if argv is None:
        with pytest.raises(SpecError, match="holds a single `;`"):
            data(exec_start=given)
    else:
        assert data(exec_start=given).exec_start == argv


def test_systemd_hands_the_program_exactly_these_words(tmp_path: Path) -> None:
    """Read back by systemd itself: no warning about the file, whatever stands in a word."""
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze is part of the fast tier (package systemd)"
    hostile = ["/bin/echo", "$(touch /x)", "a 'b' \"c\"", "50%n", "${HOME}", "back\\slash", "é", ""]
    text = data(exec_start=hostile, environment=["A=$HOME %n \"x\" 'y' \\z"]).override().text()
    unit = tmp_path / "rigbook-trial.service"
    unit.write_text(text)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "ssh"}, "unit: 'ssh' is not a service's name"),
        ({"unit": "-x.service"}, "is not a service's name"),
        ({"unit": "a/../b.service"}, "is not a service's name"),
        ({"unit": "x@.service"}, "is not a service's name"),
        ({"unit": "a\n.service"}, "is not a service's name"),
        ({"drop_in": "../x"}, "drop_in: '../x' is not a plain name"),
        ({"drop_in": "-x"}, "is not a plain name"),
        ({"exec_start": ""}, "exec_start: is empty"),
        ({"exec_start": "vllm serve"}, "'vllm' is no program"),
        ({"exec_start": "-/bin/true"}, "'-/bin/true' is no program"),
        ({"exec_start": "/bin/../x"}, "'/bin/../x' is no program"),
        ({"exec_start": "/bin/$X"}, "'/bin/$X' is no program"),
        ({"exec_start": "/bin/%i"}, "'/bin/%i' is no program"),
        ({"exec_start": "/bin/true 'x"}, "has an open quote"),
        ({"exec_start": "/bin/true\nUser=root"}, "holds a newline"),
        ({"exec_start": ["/bin/true", "a\nb"]}, "holds a newline"),
        ({"exec_start": 7}, "exec_start: "),
        ({"restart": "sometimes"}, "restart: is 'sometimes'; allowed: 'no', 'always'"),
        ({"restart_sec": -1}, "restart_sec: is -1; allowed: 0 or more"),
        ({"environment": "A"}, "is no assignment"),
        ({"environment": "1A=x"}, "is not a variable's name"),
        ({"environment": "HF_TOKEN=hf_x"}, "looks like a secret"),
        ({"exec_start": "/bin/vllm serve --api-key hf_x"}, "looks like a secret"),
        ({"exec_start": "/bin/vllm serve --api-key=hf_x"}, "looks like a secret"),
        ({"environment": ["A=x\nExecStart=/x"]}, "holds a newline"),
    ],
)
def test_what_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        data(**changes)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert "hf_x" not in str(caught.value)


# What a pin and a candidate write, and which names of kernels are taken at all.


@pytest.mark.parametrize("key", ["kernel", "candidate"])
@pytest.mark.parametrize("value", ["-x", "6 1", "$(id)", "6.1\n", "", "../6", "6'1", 6, "latest"])
def test_a_name_that_is_no_kernel_is_refused(key: str, value: object) -> None:
    with pytest.raises(SpecError, match=key):
        host_data("spark1", host(1, **{key: value}), {}, KernelData)


@pytest.mark.parametrize("value", ["current", "6.17.0-22-generic", "6.1.0-50-cloud-amd64", "6.8+x"])
def test_a_kernel_is_taken(value: str) -> None:
    assert host_data("spark1", host(1, kernel=value), {}, KernelData).kernel == value


@pytest.mark.parametrize("value", ["-x", "a b", "A", "nvidia;", 7])
def test_a_module_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="driver_module"):
        host_data("spark1", host(1, driver_module=value), {}, KernelData)


def test_grub_is_told_to_use_the_saved_default_and_not_to_save_by_itself() -> None:
    grub, _ = pin_documents("6.1.0-1", ["linux-image-6.1.0-1"])
    lines = [line for line in grub.content.splitlines() if not line.startswith("#")]
    assert lines == ["GRUB_DEFAULT=saved", "GRUB_SAVEDEFAULT=false"]


def test_the_candidates_file_is_what_node_reads(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, unit = candidate_documents("6.1.0-2", "6.1.0-1", 900, "20261120T000000Z-kernel-abcd")
    path = tmp_path_factory.mktemp("etc") / "candidate.json"
    path.write_text(facts.content)
    monkeypatch.setenv("RIGBOOK_CANDIDATE", str(path))
    assert grub_step._read() == json.loads(facts.content)
    for line in ("FailureAction=reboot", "DefaultDependencies=no", "WantedBy=sysinit.target",
                 f"ExecStart={render_unit.program_path()} candidate"):  # fmt: skip
        assert line in unit.content.splitlines()


# Units name the program by its version; the link is for people.

RUNS, OTHER = platform.release(), "6.17.0-23-generic"


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.service*.j2")), ids=lambda p: p.name)
def test_no_unit_names_the_link_that_the_next_run_moves(path: Path) -> None:
    commands = re.findall(r"^Exec\w+=[-+!@:]*(\S+.*)$", path.read_text(), re.M)
    assert commands and not [c for c in commands if c.startswith(render_unit.PROGRAM_LINK)]
    assert "rignode" not in path.read_text()


def test_the_engines_unit_names_this_checkouts_program() -> None:
    unit = next(d for d in spark_plan().documents["spark1"] if d.path == UNIT_PATH)
    assert render_unit.programs_in(unit.content) == [render_unit.program_path()]


@pytest.mark.parametrize(("one", "other", "same"), [
    ("rignode-0123456789ab.pyz", "rignode-abcdef012345.pyz", True),
    ("rignode-0123456789ab.pyz", "rignode-0123456789ab.pyz", True),
    ("rignode-0123456789ab.pyz", "rignode-0123456789ab.pyz -v", False),
    ("rignode-0123456789ab.pyz", "rignode-theirs.pyz", False),
    ("rignode-0123456789ab.pyz", "other", False),
])  # fmt: skip
def test_texts_that_differ_in_the_programs_version_alone(one: str, other: str, same: bool) -> None:
    texts = [
        f"[Service]\nExecStart={render_unit.PROGRAM_LIBRARY}/{name} pair\n" for name in (one, other)
    ]
    assert render_unit.same_but_program(*texts) == same
    # rigbook 1 wrote the link
    link = f"[Service]\nExecStart={render_unit.PROGRAM_LINK} pair\n"
    assert render_unit.same_but_program(link, texts[0])


@pytest.mark.parametrize(("candidate", "met"), [(RUNS, True), (OTHER, False)])
def test_a_candidates_unit_can_reboot_the_candidate_alone(candidate: str, met: bool) -> None:
    """Whatever fails it: a damaged file, another program, no python3. Real systemd judges."""
    unit = candidate_documents(candidate, "6.1.0-1", 900, "20261120T000000Z-kernel-abcd")[1]
    assert "FailureAction=reboot" in unit.content.splitlines()
    asked = [f"{key}={value}" for key, value in unit_lines(unit) if key.startswith("Condition")]
    assert asked == [f"ConditionKernelVersion={candidate}"]
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "condition", *asked], capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == met, done.stderr


# Hostile text in every free-text field: refused, or quoted so that nothing of it runs.

# Each would leave a file CANARY in the working directory, or break out of its line.
HOSTILE = [
    "x'; touch CANARY; #",
    'x"; touch CANARY; #',
    "$(touch CANARY)",
    "`touch CANARY`",
    "x\ntouch CANARY",
    "x\nExecStartPre=/bin/touch CANARY",
    "-rf",
    "--entrypoint=/bin/touch",
    "x; touch CANARY; #",
    "x && touch CANARY",
    "%n $HOME ${PATH} \\",
    "x\\",
    "{node.evil}",
    "\x1b]0;x\x07",
    "../../../etc/passwd",
    "x\u2028y",
    "",
]
RECIPE_FIELDS: list[tuple[str | int, ...]] = [
    ("model",),
    ("description",),
    ("weights", "source"),
    ("weights", "path"),
    ("container", "image"),
    ("container", "runtime"),
    ("container", "gpus"),
    ("container", "shm_size"),
    ("container", "ipc"),
    ("container", "volumes", 0, "source"),
    ("container", "volumes", 0, "target"),
    ("env", "FREE"),
    ("vllm_serve", "model"),
    ("vllm_serve", "served_model_name"),
    ("vllm_serve", "override_generation_config"),
    ("profiles", "balanced", "description"),
    ("profiles", "balanced", "vllm_serve", "dtype"),
    ("default_profile",),
    ("forbidden_env", 0, "name"),
    ("forbidden_env", 0, "value"),
    ("forbidden_env", 0, "reason"),
]
BARE_PAIR = {
    key
    for document in spark_plan(recipe="tiny").documents["spark1"][4:]
    for key, _ in unit_lines(document)
}
BARE = {key for key, _ in unit_lines(spark_plan(recipe="tiny").documents["spark1"][2])}


def harmless_or_refused(make: Callable[[], Plan], folder: Path) -> None:
    """The plan is refused with lines a person can read, or its files carry the text as data."""
    try:
        made = make()
    except SpecError as error:
        assert str(error).isprintable() or all(line.isprintable() for line in error.problems)
        return
    work = folder / "work"
    work.mkdir()
    for name, (script, environment, unit, node_file, *pair) in made.documents.items():
        spec = made.specs[name]
        assert argv_of_script(script, work) == list(spec.argv)
        groups = docker_run(made.recipe, made.profile, spec)
        assert exec_start(unit) == list(chain.from_iterable(groups))
        assert {key for key, _ in unit_lines(unit)} <= BARE
        lines = [f"{key}={value}" for key, value in spec.environ.items()]
        assert environment.content.split("\n") == [*lines, ""]
        assert parse_engine(json.loads(node_file.content)).node == name
        for document in pair:
            assert {key for key, _ in unit_lines(document)} <= BARE_PAIR
    assert sorted(path.name for path in work.iterdir()) == ["bin", "serve.sh"]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("field", RECIPE_FIELDS, ids=lambda f: ".".join(map(str, f)))
def test_recipe_value(tmp_path: Path, field: tuple[str | int, ...], value: str) -> None:
    root = project(tmp_path, changed(field, value))
    harmless_or_refused(lambda: spark_plan(root, recipe="broken"), tmp_path)


def renamed(where: str, value: str) -> dict[str, Any]:
    """The tiny recipe with a hostile KEY (or a hostile text inside JSON or a list)."""
    data = tiny()
    if where == "profile":
        data["profiles"][value] = data["profiles"]["latency"]
        data["default_profile"] = value
    elif where == "json":
        data["vllm_serve"]["override_generation_config"] = {value: [value, {"deep": value}]}
    elif where == "list":
        data["vllm_serve"]["allowed_origins"] = ["x", value]
    else:
        (data if where == "top" else data[where])[value] = "x"
    return data


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("where", ["top", "env", "vllm_serve", "profile", "json", "list"])
def test_recipe_key(tmp_path: Path, where: str, value: str) -> None:
    root = project(tmp_path, renamed(where, value))
    harmless_or_refused(lambda: spark_plan(root, recipe="broken"), tmp_path)


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("key", known_keys(data_type_of((), HostData)))
def test_host_data(tmp_path: Path, key: str, value: str) -> None:
    beside = {"waive": {"reason": "known"}, "reason": {"waive": "CODE"}}.get(key, {})
    changes: dict[str, object] = {"recipe": "tiny", **beside, key: value}
    harmless_or_refused(lambda: spark_plan(ROOT, **changes), tmp_path)


@pytest.mark.parametrize("value", HOSTILE)
def test_host_name_and_unknown_key(tmp_path: Path, value: str) -> None:
    with pytest.raises(SpecError):
        plan({value: host(1), "spark2": host(2)}, None, tmp_path)
    with pytest.raises(SpecError, match="unknown key"):
        spark_plan(ROOT, **{value: "x"})


# The rendered engine equals the seed's own launch scripts, flag by flag.

# The seed post's head script, as published (seed 002, "Write these as files").
SEED_HEAD = r"""
export VLLM_HOST_IP=192.168.1.11
export NCCL_SOCKET_IFNAME=bond0
export NCCL_IB_HCA=rocep1s0f0,rocep1s0f1
export NCCL_IB_DISABLE=0
export NCCL_IGNORE_CPU_AFFINITY=1
export GLOO_SOCKET_IFNAME=bond0
export TORCH_CUDA_ARCH_LIST=12.1a
export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
export VLLM_TRITON_MLA_SPARSE=1
export VLLM_USE_FLASHINFER_SAMPLER=1
export FLASHINFER_DISABLE_VERSION_CHECK=1
export TILELANG_CLEANUP_TEMP_FILES=1
export DG_JIT_USE_NVRTC=0
export DG_JIT_NVCC_COMPILER=/usr/local/cuda/bin/nvcc
export OMP_NUM_THREADS=8
vllm serve /models/DeepSeek-V4-Flash \
--served-model-name deepseek-v4-flash \
--host 0.0.0.0 --port 8000 \
--trust-remote-code \
--tensor-parallel-size 2 --pipeline-parallel-size 1 \
--kv-cache-dtype fp8 --block-size 256 \
--enable-prefix-caching --enable-chunked-prefill \
--max-model-len 200000 --max-num-seqs 4 \
--max-num-batched-tokens 16384 \
--gpu-memory-utilization 0.90 \
--disable-custom-all-reduce \
--compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}' \
--speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":2}' \
--tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 \
--enable-auto-tool-choice --reasoning-parser deepseek_v4 \
--default-chat-template-kwargs '{"thinking":true}' \
--load-format safetensors \
--nnodes 2 --node-rank 0 \
--master-addr 10.0.0.1 --master-port 29501
"""
# The recipe takes less memory than the seed did, and says why.
SEED_HEAD = SEED_HEAD.replace("--gpu-memory-utilization 0.90", "--gpu-memory-utilization 0.85")
# "Identical to head, except": the address, the rank and --headless.
SEED_WORKER = (
    SEED_HEAD.replace("192.168.1.11", "192.168.1.12")
    .replace("--node-rank 0", "--node-rank 1")
    .replace("--master-port 29501", "--master-port 29501 --headless")
)
# In the seed's YAML, though not in its scripts.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
# What the seed left in the container's own layer, where each start compiled it again.
KEPT = {
    "TRITON_CACHE_DIR": "/rigbook/jit/triton",
    "TILELANG_CACHE_DIR": "/rigbook/jit/tilelang",
}
# Ours: what NCCL logs is how RDMA is proven.
DEBUG = {"NCCL_DEBUG": "INFO"}


def parsed(script: str) -> tuple[dict[str, str], list[str]]:
    """The exported variables and the command line of a launch script."""
    environ, command = script.split("vllm serve", 1)
    command = command.replace("\\\n", " ")
    exports = [line.removeprefix("export ") for line in environ.split("\n") if line]
    return dict(line.split("=", 1) for line in exports), ["vllm", "serve", *shlex.split(command)]


def same_number(argument: str) -> str | float:
    """0.850 and 0.85 are one number to vLLM's parser."""
    try:
        return float(argument)
    except ValueError:
        return argument


@pytest.mark.parametrize(("node", "script"), [("spark1", SEED_HEAD), ("spark2", SEED_WORKER)])
def test_latency_profile_is_the_seeds_script(node: str, script: str) -> None:
    environ, argv = parsed(script)
    spec = spark_plan(profile="latency").specs[node]
    assert [same_number(a) for a in spec.argv] == [same_number(a) for a in argv]
    assert spec.environ == environ | OFFLINE | KEPT | DEBUG


@pytest.mark.parametrize(
    ("profile", "length", "seqs", "batched", "experts"),
    [
        ("latency", 200000, 4, 16384, False),
        ("throughput", 65536, 16, 8192, True),
        ("balanced", 131072, 8, 16384, True),
        (None, 131072, 8, 16384, True),
    ],
)
def test_profiles_have_the_seeds_numbers(
    profile: str | None, length: int, seqs: int, batched: int, experts: bool
) -> None:
    argv = spark_plan(profile=profile).specs["spark2"].argv
    for flag, value in (
        ("--max-model-len", length),
        ("--max-num-seqs", seqs),
        ("--max-num-batched-tokens", batched),
    ):
        assert argv.count(flag) == 1
        assert argv[argv.index(flag) + 1] == str(value)
    assert ("--enable-expert-parallel" in argv) == experts


def test_container_is_the_seeds() -> None:
    plan = spark_plan()
    unit = plan.documents["spark1"][2].content
    assert plan.specs["spark1"].volumes[:-1] == (
        ("/home/milo/models", "/models", False),
        ("/home/milo/.cache/vllm", "/root/.cache/vllm", False),
        ("/home/milo/.cache/flashinfer", "/root/.cache/flashinfer", False),
    )
    for flag in ("--gpus all", "--ipc host", "--network host", "--privileged"):
        assert f"  {flag} \\\n" in unit
    # the seed's `--runtime nvidia`: --gpus does the same, and a stock DGX OS has no such runtime
    assert "--runtime" not in unit
    assert "ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest /rigbook/serve.sh\n" in unit


def test_rendering_is_pure() -> None:
    plan = spark_plan()
    node = plan.rig.head
    assert engine_spec(plan.rig, node, plan.recipe, plan.profile) == plan.specs[node.name]
    assert "--headless" not in plan.specs["spark1"].argv
    assert plan.specs["spark2"].argv[-1] == "--headless"


# A rig of four renders as one: each node with its rank, its peers and its own cable.

HEAD, *WORKERS = NAMES


def test_each_node_has_its_rank_and_all_meet_at_the_head(tmp_path: Path) -> None:
    made = four_plan(tmp_path, spark3={"fabric_device": "enp1s0f1np1", "hcas": "rocep1s0f1"})
    for rank, name in enumerate(NAMES):
        argv, environ = made.specs[name].argv, made.specs[name].environ
        assert argv[argv.index("--nnodes") + 1] == "4"
        assert argv[argv.index("--node-rank") + 1] == str(rank)
        assert argv[argv.index("--master-addr") + 1] == "10.0.0.1"
        assert ("--headless" in argv) is (name != HEAD)
        device = "enp1s0f1np1" if name == "spark3" else "bond0"
        assert environ["NCCL_SOCKET_IFNAME"] == environ["GLOO_SOCKET_IFNAME"] == device
        assert (environ["NCCL_IB_HCA"] == "=rocep1s0f1") is (name == "spark3")
        others = [f"10.0.0.{n}" for n in range(1, 5) if n != rank + 1]
        (text,) = [d.content for d in made.documents[name] if d.path.endswith("node.json")]
        written = json.loads(text)
        assert (written["rank"], written["peers"]) == (rank, others)
        assert written["memory"]["gpus"] == 1
        assert list(made.requests[name].peers) == others
        assert len(made.requests[name].connections) == 6
