"""The memory that vLLM asks for when it starts, and which GPUs it gets."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

GIB = 1 << 30
MIB = 1 << 20
# What a start usually takes of a GB10's memory before vLLM measures it: 110 to 111 GiB available,
# 101.3 to 102.2 seen, over many boots and two drivers (GLM-5.3-Flash-EXL3-2x#47).
USUALLY_TAKEN = 9 * GIB
# More than that is no start's own: something else took memory at the same time.
MOST_TAKEN = 16 * GIB
# vLLM's own CUDA context, made before it measures: 526 MiB on an H200 with driver 580.159.04, up to
# 600 on another machine with the same (tests/system/gpu); less on small cards.
CONTEXT_MIB = 620
# What a driver keeps for itself is less. 35 failed starts held 85 GiB (eugr/spark-vllm-docker#257).
LEAK = 8 * GIB


def is_unified(gpu_name: str) -> bool:
    """Gives True for a GB10, whose memory is the system's (marimo#6822, nvitop#208).

    vLLM then takes MemAvailable for the GPU's memory (vllm#35356).
    """
    return "GB10" in gpu_name


def share_of(total: int, utilization: float) -> int:
    """Gives what vLLM wants free of a total, in the total's unit: it refuses to start below."""
    return ceil(total * utilization)


def card_need(total: int, used: int | None, free: int, utilization: float) -> int:
    """Gives the MiB that vLLM wants free of a card, as nvidia-smi tells its memory in MiB.

    CUDA's total, of which vLLM takes its share, is without what the driver keeps for itself:
    143,155 of an H200's 143,771 MiB.
    """
    return share_of(total if used is None else min(total, used + free), utilization)


def is_leaked(unaccounted: int, short: int, users: int) -> bool:
    """Gives True for memory that failed starts left behind and only a reboot brings back.

    `unaccounted` bytes are in no category of /proc/meminfo, as a GB10's GPU memory is; nobody
    uses the GPU (`users`), and with them the `short` bytes would be there.
    """
    return not users and unaccounted >= max(LEAK, short)


def is_assigned(index: int, uuid: str, devices: Sequence[str] | None) -> bool:
    """Gives True for a GPU that the engine gets; a UUID may be cut short, as CUDA allows."""
    if devices is None:
        return True
    return any(one == str(index) or (one[:1].isalpha() and uuid.startswith(one)) for one in devices)
