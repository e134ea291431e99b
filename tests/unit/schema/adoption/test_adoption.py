"""Live command lines as flags: short names, dotted ones, numbers, JSON, the place of the model."""

from __future__ import annotations

import copy
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploys.plans.adopt import loaded, save_write
from node.rules.secret import MASK
from schema.adoption import LiveNode, Row, Written, compare, written
from schema.hardware import FormerContainer, FormerEngine
from schema.plan import Plan
from schema.vllm import parse_command_line

VLLM = "/usr/bin/python3 /usr/local/bin/vllm serve"


# names as vllm/engine/arg_utils.py and vllm/utils/argparse_utils.py of vLLM 0.32 have them
@pytest.mark.parametrize(("words", "flags"), [
    ("/m --port 8000", {"model": "/m", "port": 8000}),
    ("--trust-remote-code /m --port=1", {"trust_remote_code": True, "model": "/m", "port": 1}),
    ("--model /m", {"model": "/m"}),
    ("m -tp 2 -pp 1 -q fp8", {"model": "m", "tensor_parallel_size": 2,
                              "pipeline_parallel_size": 1, "quantization": "fp8"}),
    ("m -O3", {"model": "m", "optimization_level": 3}),
    ("m -O 2", {"model": "m", "optimization_level": 2}),
    ("m --no-enable-prefix-caching", {"model": "m", "enable_prefix_caching": False}),
    ("m --max_model_len 10", {"model": "m", "max_model_len": 10}),
    ("m --seed -1", {"model": "m", "seed": -1}),
    ("m --gpu-memory-utilization 0.90", {"model": "m", "gpu_memory_utilization": "0.90"}),
    ("m --tokenizer-revision 1.10", {"model": "m", "tokenizer_revision": "1.10"}),
    ("m --kv-cache-memory-bytes 1G", {"model": "m", "kv_cache_memory_bytes": "1G"}),
    ("m --served-model-name a b", {"model": "m", "served_model_name": ["a", "b"]}),
    ("m --speculative-config '{\"a\": 1}'", {"model": "m", "speculative_config": {"a": 1}}),
    ("m --speculative-config {a:1}", {"model": "m", "speculative_config": "{a:1}"}),
    ("m -cc.mode 3 -cc.pass_config.x true",
     {"model": "m", "compilation_config": {"mode": 3, "pass_config": {"x": True}}}),
    ("m --compilation-config.custom_ops+=all,none",
     {"model": "m", "compilation_config": {"custom_ops": ["all", "none"]}}),
])  # fmt: skip
def test_flags(words: str, flags: dict[str, Any]) -> None:
    assert parse_command_line([*VLLM.split(), *shlex.split(words)]).flags == flags


@pytest.mark.parametrize("program", [
    VLLM, "/opt/venv/bin/vllm serve", "python -m vllm.entrypoints.cli.main serve",
    "python3 -m vllm.entrypoints.openai.api_server",
    "python3 /x/vllm/entrypoints/openai/api_server.py",
])  # fmt: skip
def test_programs(program: str) -> None:
    found = parse_command_line([*program.split(), "--model", "/m"])
    assert (found.flags, found.program) == ({"model": "/m"}, tuple(program.split()))


def test_what_follows_from_the_rig_stands_apart() -> None:
    found = parse_command_line(
        f"{VLLM} m -n 2 -r 1 --headless --master-addr 10.0.0.1 --master-port 1".split()
    )
    assert found.flags == {"model": "m"}
    assert found.join == {"nnodes": 2, "node_rank": 1, "headless": True,
                          "master_addr": "10.0.0.1", "master_port": 1}  # fmt: skip


def test_secrets_and_repeated_flags_are_named() -> None:
    found = parse_command_line(f"{VLLM} m --api-key *** --port 1 --port 2".split())
    assert (found.secret, found.twice) == (["api_key"], ["port"])
    assert found.flags == {"model": "m", "port": 2}


# From a live engine to files that load, and render to the same engine.

MACHINES = yaml.safe_load(Path(__file__).with_name("machines.yaml").read_text())
ENGINE: dict[str, Any] = {
    "pid": 77, "start_ticks": 7, "env": {}, "cwd": "/", "uid": 0, "user": "root", "exe": None,
    "unit": None, "container": None, "inside_of": "host", "venv": None, "port": 8000,
    "node_rank": 0, "is_head": True,
}  # fmt: skip
BOX: dict[str, Any] = {
    "id": "aa", "image_id": "sha256:77", "state": "running", "main": ("sleep", "infinity"),
    "env": {}, "image_env": {}, "restart_policy": "no", "auto_remove": False,
    "network_mode": "host", "ipc_mode": "host", "privileged": False, "runtime": "runc",
    "gpus": False, "labels": {},
}  # fmt: skip


def live(machine: dict[str, Any]) -> list[LiveNode]:
    """The nodes of a machine of the file, in rank order."""
    found = []
    for number, (name, row) in enumerate(machine["nodes"].items(), 1):
        row = copy.deepcopy(row)
        box = row.pop("container", None)
        container = FormerContainer(**{**BOX, **box}) if box else None
        where = {"container": container.name, "inside_of": "exec"} if container else {}
        fabric = machine.get("fabric")
        found.append(LiveNode(
            name=name, ssh_user="milo", home="/home/milo", lan_address=f"192.168.1.1{number}",
            fabric_address=f"10.0.0.{number}" if fabric else None, fabric_device=fabric,
            fabric_mtu=9000, has_gpu=True, engine=FormerEngine(**{**ENGINE, **where, **row}),
            container=container,
        ))  # fmt: skip
    return found


def made(machine: dict[str, Any], ssh: dict[str, object] | None = None) -> Written:
    """The files of such nodes."""
    nodes = live(machine)
    by = {node.name: ["unit x.service (enabled)"] for node in nodes}
    return written("mine", nodes, by, {node.name: ssh or {} for node in nodes}, "2026-11-23")


def compared(machine: dict[str, Any], plan: Plan) -> list[Row]:
    """Every row of every node."""
    nodes = live(machine)
    return [row for n in nodes for row in compare(plan, n.name, n.engine, n.container)]


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_written_loads_and_renders_the_same(name: str) -> None:
    machine = MACHINES[name]
    files = made(machine)
    plan = loaded(files, "mine")
    rows = compared(machine, plan)
    assert [row.name for row in rows if row.verdict == "differs"] == machine.get("differs", [])
    assert {r.name for r in rows if r.verdict == "secret"} == set(machine.get("secret", ()))
    counts = Counter(row.kind for row in compare(plan, *first(machine)) if row.verdict == "same")
    for kind, number in machine.get("same", {}).items():
        assert counts[kind] == number, (kind, rows)
    assert plan.recipe.weights.path == machine["weights"]
    told = "\n".join(files.needs)
    for words in machine["needs"]:
        assert words in told
        assert words in files.files["catalog/recipes/mine.yaml"]
    assert not [word for word in machine.get("never", ()) if word in told]
    assert MASK not in "".join(files.files.values())


def first(machine: dict[str, Any]) -> tuple[str, FormerEngine, FormerContainer | None]:
    """The head, as compare takes it."""
    head = live(machine)[0]
    return head.name, head.engine, head.container


def test_values_that_differ_by_node_become_placeholders() -> None:
    plan = loaded(made(MACHINES["spark"]), "mine")
    assert plan.recipe.env["VLLM_HOST_IP"] == "{node.lan_address}"
    assert plan.recipe.env["LMCACHE_TEMPLATE"] == "{{model}}"
    assert plan.recipe.env["NCCL_SOCKET_IFNAME"] == "bond0"
    assert plan.specs["spark2"].environ["VLLM_HOST_IP"] == "192.168.1.12"
    assert (plan.rig.head.name, str(plan.rig.workers[0].fabric_address)) == ("spark1", "10.0.0.2")


def test_an_image_is_named_by_its_digest() -> None:
    box = loaded(made(MACHINES["spark"]), "mine").recipe.container
    assert box is not None and "@sha256:2222" in box.image and box.gpus == "all"
    box = loaded(made(MACHINES["compose"]), "mine").recipe.container
    assert box is not None and (box.shm_size, box.runtime, box.ipc) == ("16g", "nvidia", "private")


def test_a_venv_keeps_its_user_and_the_path_of_its_tools() -> None:
    recipe = loaded(made(MACHINES["tower"]), "mine").recipe
    assert recipe.venv is not None
    assert (recipe.venv.path, recipe.venv.user) == ("/opt/genesis/venv", "llm")
    assert "/usr/local/cuda/bin" in recipe.env["PATH"] and recipe.env["GENESIS_ENABLE_P67"] == "1"
    assert "INVOCATION_ID" not in recipe.env


def test_a_file_of_a_container_writes_no_line_of_the_recipe() -> None:
    """What a user of the container calls a file stands in a comment."""
    machine = copy.deepcopy(MACHINES["spark"])
    machine["nodes"]["spark1"]["container"]["changed"] = ["/w/x\nforged: true"]
    text = made(machine).files["catalog/recipes/mine.yaml"]
    assert "/w/x?forged: true" in text
    assert "forged" not in yaml.safe_load(text)


# what a live engine has changed to since: each is named, and nothing else
@pytest.mark.parametrize(("change", "differs"), [
    ({"argv": ["python3", "vllm", "serve", "/models/DeepSeek-V4-Flash", "--port", "8001"]},
     {"port", "tensor_parallel_size", "nnodes"}),
    ({"env": {"OMP_NUM_THREADS": "4"}}, {"OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME"}),
])  # fmt: skip
def test_a_difference_is_named(change: dict[str, Any], differs: set[str]) -> None:
    plan = loaded(made(MACHINES["spark"]), "mine")
    machine = copy.deepcopy(MACHINES["spark"])
    machine["nodes"]["spark1"].update(change)
    found = {r.name for r in compare(plan, *first(machine)) if r.verdict == "differs"}
    assert differs <= found
    assert not found & {"gpu_memory_utilization"} or "argv" in change


@pytest.mark.parametrize(("flag", "told"), [
    (["--config", "/w/c.yaml"], "config: /w/c.yaml holds more flags"),
    (["--distributed-executor-backend", "ray"], "rigbook starts no Ray"),
    (["--port", "8000", "--port", "8000"], "port was given more than once on spark1"),
    (["--hf-token", "a"], "hf_token has no place here"),
])  # fmt: skip
def test_a_flag_that_needs_a_person_is_noted(flag: list[str], told: str) -> None:
    machine = copy.deepcopy(MACHINES["spark"])
    for node in machine["nodes"].values():
        node["argv"] += flag[:2]
    machine["nodes"]["spark1"]["argv"] += flag[2:]
    assert told in "\n".join(made(machine).needs)


def test_what_no_placeholder_says_is_noted() -> None:
    machine = copy.deepcopy(MACHINES["spark"])
    machine["nodes"]["spark2"]["env"]["OMP_NUM_THREADS"] = "4"
    machine["nodes"]["spark2"]["env"]["ONLY_HERE"] = "1"
    machine["nodes"]["spark2"]["argv"] += ["--max-num-seqs", "9"]
    files = made(machine)
    told = "\n".join(files.needs)
    assert "OMP_NUM_THREADS differs by node (spark1 8, spark2 4)" in told
    assert "ONLY_HERE was set on spark2 only" in told
    assert "max_num_seqs stands on spark2 9 only, not on the head" in told
    differs = {r.name for r in compared(machine, loaded(files, "mine")) if r.verdict == "differs"}
    assert differs == {"OMP_NUM_THREADS", "ONLY_HERE", "max_num_seqs"}


def test_files_are_saved_once(tmp_path: Path) -> None:
    files = made(MACHINES["tower"])
    save_write(files, tmp_path)
    for path, text in files.files.items():
        assert (tmp_path / path).read_text() == text
    with pytest.raises(FileExistsError):
        save_write(files, tmp_path)


def test_keys_of_ssh_are_kept_and_passwords_are_not() -> None:
    ssh: dict[str, object] = {"ssh_key": Path("/home/me/.ssh/id"), "ssh_port": 2222,
                              "ssh_password": "made-up", "ssh_user": "milo"}  # fmt: skip
    files = made(MACHINES["tower"], ssh)
    text = files.files["group_data/mine.py"]
    assert 'ssh_key = "/home/me/.ssh/id"' in text and "ssh_port = 2222" in text
    assert "made-up" not in "".join(files.files.values())
    assert "ssh_password is not written" in "\n".join(files.needs)
