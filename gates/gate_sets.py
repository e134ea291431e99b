"""All gates before serving, and the one function that asks them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gates import (
    artifact,
    fabric,
    gpu,
    health,
    host,
    kernel,
    processes,
    recipe,
    storage,
    unit,
    weights,
)
from gates.core import Gate, Observed, Violation, violation
from schema.plan import Plan

__all__ = ["SERVING", "Gate", "Observed", "check"]


def comes_back(plan: Plan, observed: Observed) -> list[Violation]:
    """A unit that is not enabled stays down after the boot: here that blocks (C13, C16)."""
    found = unit.unit_state(plan, observed)
    return [replace(v, severity="block") for v in found if v.code == "unit-disabled"]


SERVING: tuple[Gate, ...] = (
    *host.REACHABLE_GATES,
    *host.OTHER_RIG_GATES,
    *gpu.DRIVER_GATES,
    *health.CHEAP,
    *gpu.GPU_MEMORY_GATES,
    *host.HOST_MEMORY_GATES,
    *processes.PROCESS_GATES,
    *fabric.FABRIC_GATES,
    *fabric.RDMA_GATES,
    *storage.GATES,
    *gpu.GPU_ACCESS_GATES,
    *artifact.JIT_CACHE_GATES,
    *artifact.IMAGE_GATES,
    *artifact.VENV_GATES,
    *artifact.IMAGE_PATCH_GATES,
    *artifact.MODULES_GATES,
    *unit.SUPERVISOR_GATES,
    *unit.GHOST_GATES,
    *weights.GATES,
    *recipe.CHOICE_GATES,
)

# What the former engine is in the way of, until it is ended: asked once it is.
ROOM: tuple[Gate, ...] = (
    *gpu.DRIVER_GATES,
    *gpu.GPU_MEMORY_GATES,
    *host.HOST_MEMORY_GATES,
    *processes.PROCESS_GATES,
    *unit.SUPERVISOR_GATES,
)
# Before a rig that serves by other means is taken over: all but that.
TAKING: tuple[Gate, ...] = tuple(
    gate for gate in SERVING if gate in gpu.DRIVER_GATES or gate not in ROOM
)

# Before any change: every node answers and is this rig's, nobody else is at work, nothing is half
# done.
CHANGING: tuple[Gate, ...] = (
    host.nodes_reachable,
    *host.OTHER_RIG_GATES,
    storage.lock_free,
    storage.changes_closed,
    storage.journal_whole,
)
# Before a version or a kernel is changed: what it would be tried on is sound.
SOUND: tuple[Gate, ...] = (health.gpu_lost, health.no_failing_disk)
# Before another version is installed: the venv is there, and who runs it. Not its version or its
# program, which an upgrade may be meant to mend.
UPGRADING: tuple[Gate, ...] = (
    *CHANGING,
    *SOUND,
    storage.disk_room,
    artifact.venv_there,
    artifact.venv_user,
)
# Before a cold restart, which ends orphans, frees ports and memory.
RESTARTING: tuple[Gate, ...] = (
    *host.REACHABLE_GATES,
    *host.OTHER_RIG_GATES,
    *gpu.DRIVER_GATES,
    *health.CHEAP,
    *fabric.FABRIC_GATES,
    *fabric.RDMA_GATES,
    storage.disk_room,
    storage.lock_free,
    storage.changes_closed,
    storage.journal_whole,
    *gpu.GPU_ACCESS_GATES,
    *artifact.JIT_CACHE_GATES,
    *artifact.IMAGE_GATES,
    *artifact.VENV_GATES,
    *artifact.IMAGE_PATCH_GATES,
    *artifact.MODULES_GATES,
    *unit.SUPERVISOR_GATES,
    *unit.GHOST_GATES,
    *unit.INSTALLED_RECIPE_GATES,
    *weights.GATES,
    *recipe.CHOICE_GATES,
)
# Before a reboot: what does not come back by itself is named while there is still a way to log in.
# Not a lost GPU, which a reboot is there for.
REBOOTING: tuple[Gate, ...] = (
    *CHANGING,
    health.no_failing_disk,
    *kernel.BOOT,
    *unit.SUPERVISOR_GATES,
    *unit.GHOST_GATES,
    *unit.INSTALLED_RECIPE_GATES,
    comes_back,
)
# Before a measurement: what is measured is kept as this rig's.
MEASURING: tuple[Gate, ...] = (host.nodes_reachable, *host.OTHER_RIG_GATES)
# Before a look that waits for nobody.
LOOKING: tuple[Gate, ...] = (host.nodes_reachable, storage.lock_free, storage.journal_whole)
# Before a rollback: an open change is what it is there for, and it waits for a held lock.
REACHING: tuple[Gate, ...] = (
    host.nodes_reachable,
    storage.journal_whole,
    *host.OTHER_RIG_GATES,
)
# Before a restore.
RESTORING: tuple[Gate, ...] = (*LOOKING, *host.OTHER_RIG_GATES)
# What asks about an engine that rigbook itself installs and starts. A Deployment's is its chart's:
# files, unit, container, weights and processes are no business of ours there.
OF_OUR_ENGINE: frozenset[Gate] = frozenset(
    (
        *gpu.GPU_MEMORY_GATES,
        *processes.PROCESS_GATES,
        *fabric.FABRIC_GATES,
        *fabric.RDMA_GATES,
        *gpu.GPU_ACCESS_GATES,
        *artifact.JIT_CACHE_GATES,
        *artifact.IMAGE_GATES,
        *artifact.VENV_GATES,
        *artifact.IMAGE_PATCH_GATES,
        *artifact.MODULES_GATES,
        *unit.GHOST_GATES,
        *weights.GATES,
        *recipe.CHOICE_GATES,
        *unit.INSTALLED_RECIPE_GATES,
        *processes.FOREIGN_ENGINE_GATES,
        *processes.PEER_GATES,
        *unit.CRASH_LOOP_GATES,
        *unit.LAUNCH_SCRIPT_GATES,
        *unit.SUPERVISION_GATES,
        *unit.SUPERVISOR_GATES,
        *recipe.DRIFT_GATES,
        comes_back,
    )
)


def check(plan: Plan, observed: Observed, gates: Iterable[Gate] = SERVING) -> list[Violation]:
    """What every gate says, lowest layer first, then by node in rank order, each finding once.

    A gate that fails is a blocking `gate-error`: what was not checked is unknown (P5).
    """
    found: dict[Violation, None] = {}
    for gate in gates:
        if plan.runtime == "deployment" and gate in OF_OUR_ENGINE:
            continue
        try:
            found.update(dict.fromkeys(gate(plan, observed)))
        except Exception as error:  # any bug of a gate must block, not end the run half-way
            found[_gate_error(gate, error)] = None
    ranks = {node.name: node.rank for node in plan.rig.nodes}
    return sorted(found, key=lambda v: (v.layer, ranks.get(v.node or "", -1), v.severity, v.code))


def _gate_error(gate: Gate, error: Exception) -> Violation:
    name = getattr(gate, "__name__", "a gate")
    return violation(
        "gate-error",
        None,
        f"the gate {name} failed, so what it checks is unknown",
        evidence=f"{type(error).__name__}: {error}"[:300],
        remedy="report it with this line; nothing was changed",
        unknown=True,
    )
