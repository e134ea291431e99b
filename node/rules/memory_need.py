"""The memory that vLLM asks for when it starts, and which GPUs it gets."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

GIB = 1 << 30
MIB = 1 << 20


def is_unified(gpu_name: str) -> bool:
    """Gives True for a GB10, whose memory is the system's (marimo#6822, nvitop#208).

    vLLM then takes MemAvailable for the GPU's memory (vllm#35356).
    """
    return "GB10" in gpu_name


def share_of(total: int, utilization: float) -> int:
    """Gives what vLLM wants free of a total, in the total's unit: it refuses to start below."""
    return ceil(total * utilization)


def is_assigned(index: int, uuid: str, devices: Sequence[str] | None) -> bool:
    """Gives True for a GPU that the engine gets; a UUID may be cut short, as CUDA allows."""
    if devices is None:
        return True
    return any(one == str(index) or (one[:1].isalpha() and uuid.startswith(one)) for one in devices)
