"""The rendered engine equals the seed's own launch scripts, flag by flag."""

from __future__ import annotations

import shlex

import pytest

from schema.render.engine_spec import engine_spec
from tests.unit.builders.spark_rig import spark_plan

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
