"""Live command lines as flags: short names, dotted ones, numbers, JSON, the place of the model."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from schema.adoption.command_line import parse

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
    assert parse([*VLLM.split(), *shlex.split(words)]).flags == flags


@pytest.mark.parametrize("program", [
    VLLM, "/opt/venv/bin/vllm serve", "python -m vllm.entrypoints.cli.main serve",
    "python3 -m vllm.entrypoints.openai.api_server",
    "python3 /x/vllm/entrypoints/openai/api_server.py",
])  # fmt: skip
def test_programs(program: str) -> None:
    found = parse([*program.split(), "--model", "/m"])
    assert (found.flags, found.program) == ({"model": "/m"}, tuple(program.split()))


def test_what_follows_from_the_rig_stands_apart() -> None:
    found = parse(f"{VLLM} m -n 2 -r 1 --headless --master-addr 10.0.0.1 --master-port 1".split())
    assert found.flags == {"model": "m"}
    assert found.join == {"nnodes": 2, "node_rank": 1, "headless": True,
                          "master_addr": "10.0.0.1", "master_port": 1}  # fmt: skip


def test_secrets_and_repeated_flags_are_named() -> None:
    found = parse(f"{VLLM} m --api-key *** --port 1 --port 2".split())
    assert (found.secret, found.twice) == (["api_key"], ["port"])
    assert found.flags == {"model": "m", "port": 2}
