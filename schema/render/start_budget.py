"""How long the parts of an engine's start may take on a node, in seconds, and what memory it needs.

systemd's timeouts and start limit follow from these, so that none of them ends a start that is
still within its budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from schema.core.errors import SpecError
from schema.desired.plan import EngineSpec
from schema.desired.rig import Node, Rig
from schema.recipe.recipe import Recipe
from schema.render.gpu_access import cdi_asked

# A bond at boot, with its switch or its peer, comes minutes after the rest on some boards.
FABRIC_WAIT_S = 300
# prelaunch's other parts (node/engine/prelaunch.py): docker, leftovers and orphans, memory.
PRELAUNCH_S = 120 + 180 + 60
MARGIN_S = 60
STOP_S = 60
RESTART_S = 15
# The head needs three looks, 15 s apart, to see that its worker is gone; a worker that is back
# sooner would join the head that is about to be restarted.
WORKER_RESTART_S = 60
STARTS = 3

# vLLM's own defaults, for recipes that leave the value out.
DEFAULT_UTILIZATION = 0.9
DEFAULT_CPU_KVCACHE_GIB = 4.0
CPU_FLOOR_GIB = 2.0


@dataclass(frozen=True)
class UnitTimeouts:
    """The unit's times on one node: systemd's limits for start and stop, its pause, its window."""

    timeout_start_s: int
    timeout_stop_s: int
    restart_s: int
    start_limit_s: int


def times(rig: Rig, node: Node, recipe: Recipe) -> UnitTimeouts:
    """The times of `node`'s unit.

    The window of the start limit is longer than STARTS starts that fail as late as they can: a
    shorter one would never count to its end, and the loop would go on.
    """
    several = len(rig.nodes) > 1
    budget = recipe.expect.start_budget_s
    prelaunch = PRELAUNCH_S + (FABRIC_WAIT_S if several else 0)
    # The head waits for its peers before, and for its own answer after; a rank that never joins
    # is restarted after the budget (node/engine/peer_watchdog.py).
    waits = budget * 2 if several and node.role == "head" else budget
    start = prelaunch + waits + MARGIN_S
    pause = WORKER_RESTART_S if several and node.role == "worker" else RESTART_S
    cycle = start + MARGIN_S + 2 * STOP_S + pause
    return UnitTimeouts(start, STOP_S, pause, STARTS * cycle)


def utilization(spec: EngineSpec) -> float:
    """The share of the GPU's memory that vLLM takes; SpecError when it is no share."""
    given = spec.flags.get("gpu_memory_utilization", DEFAULT_UTILIZATION)
    try:
        share = float(str(given))
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise SpecError(
            f"vllm_serve.gpu_memory_utilization: is {given!r}; allowed: more than 0, up to 1"
        )
    return share


def gpus_needed(rig: Rig, spec: EngineSpec) -> int:
    """GPUs that one node must have: tensor times pipeline ranks, spread over the nodes."""
    flags = spec.flags
    ranks = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        try:
            ranks *= int(str(flags.get(name, 1)))
        except ValueError:
            raise SpecError(
                f"vllm_serve.{name}: is {flags[name]!r}; allowed: a whole number"
            ) from None
    return max(1, ceil(ranks / len(rig.nodes)))


def devices(recipe: Recipe, spec: EngineSpec) -> tuple[str, ...] | None:
    """The GPUs that the engine gets, as indices or UUIDs of the host; None: all of them.

    Of the container's `gpus` (`device=…`, or CDI devices), NVIDIA_VISIBLE_DEVICES and
    CUDA_VISIBLE_DEVICES; the last one counts within what the others leave.
    """
    box = recipe.container
    given = (box.gpus or "").strip("\"'") if box else ""
    chosen = _listed(given.removeprefix("device=")) if given.startswith("device=") else None
    if box is not None and cdi_asked(box):
        chosen = _listed(",".join(name.partition("=")[2] for name in cdi_asked(box)))
    if chosen is None and box is not None:
        chosen = _listed(spec.environ.get("NVIDIA_VISIBLE_DEVICES", "all"))
    inner = _listed(spec.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    if chosen is None or inner is None:
        return inner if chosen is None else chosen
    return tuple(
        chosen[int(one)] if one.isdigit() and int(one) < len(chosen) else one for one in inner
    )


def _listed(text: str) -> tuple[str, ...] | None:
    """A list of GPUs as CUDA and the container runtime take it; None for all of them."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    return None if not words or words == ("all",) else words


def cpu_memory(rig: Rig, spec: EngineSpec) -> int:
    """Bytes of system memory that an engine without GPUs needs on one node.

    Each rank keeps a cache of its own.
    """
    given = spec.environ.get("VLLM_CPU_KVCACHE_SPACE") or 0
    try:
        space = float(given)
    except ValueError:
        raise SpecError(f"env.VLLM_CPU_KVCACHE_SPACE: is {given!r}; allowed: GiB") from None
    caches = (space or DEFAULT_CPU_KVCACHE_GIB) * gpus_needed(rig, spec)
    return ceil((caches + CPU_FLOOR_GIB) * 1024**3)
