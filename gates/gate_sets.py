"""All gates before serving, and the one function that asks them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gates.artifact import image, image_patches, jit_caches, modules, venv
from gates.cluster import host_memory
from gates.core.check import Gate, Observed
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.drift import findings
from gates.engine import foreign_engine, peers, processes
from gates.gpu import container, driver, memory
from gates.health import gpu, host
from gates.host import other_rig, reachable, storage
from gates.kernel import next_boot
from gates.recipe import choices
from gates.transfer import fabric, rdma
from gates.unit import (
    crash_loop,
    ghost,
    installed_recipe,
    launch_script,
    supervision,
    supervisors,
)
from gates.weights import weights
from schema.desired.plan import Plan

__all__ = ["SERVING", "Gate", "Observed", "check"]


def comes_back(plan: Plan, observed: Observed) -> list[Violation]:
    """A unit that is not enabled stays down after the boot: here that blocks (C13, C16)."""
    found = supervision.unit_state(plan, observed)
    return [replace(v, severity="block") for v in found if v.code == "unit-disabled"]


SERVING: tuple[Gate, ...] = (
    *reachable.GATES,
    *other_rig.GATES,
    *driver.GATES,
    *gpu.CHEAP,
    *memory.GATES,
    *host_memory.GATES,
    *processes.GATES,
    *fabric.GATES,
    *rdma.GATES,
    *storage.GATES,
    *container.GATES,
    *jit_caches.GATES,
    *image.GATES,
    *venv.GATES,
    *image_patches.GATES,
    *modules.GATES,
    *supervisors.GATES,
    *ghost.GATES,
    *weights.GATES,
    *choices.GATES,
)

# What the former engine is in the way of, until it is ended: asked once it is.
ROOM: tuple[Gate, ...] = (
    *driver.GATES,
    *memory.GATES,
    *host_memory.GATES,
    *processes.GATES,
    *supervisors.GATES,
)
# Before a rig that serves by other means is taken over: all but that.
TAKING: tuple[Gate, ...] = tuple(
    gate for gate in SERVING if gate in driver.GATES or gate not in ROOM
)

# Before any change: every node answers and is this rig's, nobody else is at work, nothing is half
# done.
CHANGING: tuple[Gate, ...] = (
    reachable.nodes_reachable,
    *other_rig.GATES,
    storage.lock_free,
    storage.changes_closed,
    storage.journal_whole,
)
# Before a version or a kernel is changed: what it would be tried on is sound.
SOUND: tuple[Gate, ...] = (gpu.gpu_lost, host.no_failing_disk)
# Before another version is installed: the venv is there, and who runs it. Not its version or its
# program, which an upgrade may be meant to mend.
UPGRADING: tuple[Gate, ...] = (
    *CHANGING,
    *SOUND,
    storage.disk_room,
    venv.venv_there,
    venv.venv_user,
)
# Before a cold restart, which ends orphans, frees ports and memory.
RESTARTING: tuple[Gate, ...] = (
    *reachable.GATES,
    *other_rig.GATES,
    *driver.GATES,
    *gpu.CHEAP,
    *fabric.GATES,
    *rdma.GATES,
    storage.disk_room,
    storage.lock_free,
    storage.changes_closed,
    storage.journal_whole,
    *container.GATES,
    *jit_caches.GATES,
    *image.GATES,
    *venv.GATES,
    *image_patches.GATES,
    *modules.GATES,
    *supervisors.GATES,
    *ghost.GATES,
    *installed_recipe.GATES,
    *weights.GATES,
    *choices.GATES,
)
# Before a reboot: what does not come back by itself is named while there is still a way to log in.
# Not a lost GPU, which a reboot is there for.
REBOOTING: tuple[Gate, ...] = (
    *CHANGING,
    host.no_failing_disk,
    *next_boot.BOOT,
    *supervisors.GATES,
    *ghost.GATES,
    *installed_recipe.GATES,
    comes_back,
)
# Before a measurement: what is measured is kept as this rig's.
MEASURING: tuple[Gate, ...] = (reachable.nodes_reachable, *other_rig.GATES)
# Before a look that waits for nobody.
LOOKING: tuple[Gate, ...] = (reachable.nodes_reachable, storage.lock_free, storage.journal_whole)
# Before a rollback: an open change is what it is there for, and it waits for a held lock.
REACHING: tuple[Gate, ...] = (
    reachable.nodes_reachable,
    storage.journal_whole,
    *other_rig.GATES,
)
# Before a restore.
RESTORING: tuple[Gate, ...] = (*LOOKING, *other_rig.GATES)
# What asks about an engine that rigbook itself installs and starts. A Deployment's is its chart's:
# files, unit, container, weights and processes are no business of ours there.
OF_OUR_ENGINE: frozenset[Gate] = frozenset(
    (
        *memory.GATES,
        *processes.GATES,
        *fabric.GATES,
        *rdma.GATES,
        *container.GATES,
        *jit_caches.GATES,
        *image.GATES,
        *venv.GATES,
        *image_patches.GATES,
        *modules.GATES,
        *ghost.GATES,
        *weights.GATES,
        *choices.GATES,
        *installed_recipe.GATES,
        *foreign_engine.GATES,
        *peers.GATES,
        *crash_loop.GATES,
        *launch_script.GATES,
        *supervision.GATES,
        *supervisors.GATES,
        *findings.GATES,
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
