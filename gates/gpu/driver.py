"""Gates of the NVIDIA driver: present, enough GPUs, the same version on every node."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from gates.core.check import Observed, collect, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.machine import Gpus
from schema.observed.snapshot import NodeSnapshot


def gpus_needed(plan: Plan, node: Node) -> int:
    """GPUs that one node must have: tensor times pipeline ranks, spread over the nodes."""
    if plan.runtime == "deployment":
        return 1  # shared by HAMi: how much of it a pod gets is its limit's matter
    flags = plan.specs[node.name].flags
    ranks = int(str(flags.get("tensor_parallel_size", 1))) * int(
        str(flags.get("pipeline_parallel_size", 1))
    )
    return max(1, ceil(ranks / len(plan.rig.nodes)))


def named(gpus: Gpus) -> str:
    """The driver's version, with a rehearsal stand-in called what it is."""
    return f"{gpus.driver_version} (stand-in)" if gpus.stand_in else gpus.driver_version


@per_node
def driver_present(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A driver that sees the GPUs the recipe's ranks need (B4: a kernel without its module)."""
    if not plan.recipe.expect.needs_nvidia:
        return
    gpus = require(snapshot.gpus, "gpus")
    needed = gpus_needed(plan, node)
    if len(gpus.gpus) < needed:
        yield violation(
            "driver-missing",
            node.name,
            f"{node.name} has {len(gpus.gpus)} GPUs for {needed} ranks",
            evidence=f"driver {named(gpus)}; kernel {snapshot.identity.kernel}; "
            f"GPUs: {', '.join(gpu.name for gpu in gpus.gpus) or 'none'}",
            remedy=f"on {node.name}: nvidia-smi; modinfo -k $(uname -r) -F version nvidia",
        )
    elif gpus.stand_in:
        yield violation(
            "driver-stand-in",
            node.name,
            f"the GPUs of {node.name} are a rehearsal stand-in; no real driver is there",
            evidence=f"nvidia-smi reports itself as a stand-in, driver {named(gpus)}",
            remedy="none on a rehearsal host; on a real one: apt-get install --reinstall "
            "the driver's nvidia-utils package",
        )


def driver_equal(plan: Plan, observed: Observed) -> list[Violation]:
    """One driver version on all nodes; NCCL over two versions fails late (field notes, vLLM)."""
    if not plan.recipe.expect.needs_nvidia:
        return []
    drivers, found = collect(plan, observed, lambda _, s: require(s.gpus, "gpus"))
    seen = ", ".join(f"{node.name} {named(gpus)}" for node, gpus in drivers)
    for node, gpus in drivers[1:]:
        if gpus.driver_version != drivers[0][1].driver_version:
            found.append(
                violation(
                    "driver-mismatch",
                    node.name,
                    f"{node.name} runs another NVIDIA driver than {drivers[0][0].name}",
                    evidence=f"driver versions: {seen}",
                    remedy="install one driver version on all nodes, then reboot them one by one "
                    "(check: nvidia-smi --query-gpu=driver_version --format=csv,noheader)",
                )
            )
    return found


GATES = (driver_present, driver_equal)
