"""GPUs of a node: driver, access, memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import ceil

from gates.core import (
    GIB,
    MIB,
    Gate,
    Observed,
    Violation,
    collect_check,
    deploy_command,
    gib,
    per_node,
    require,
    violation,
)
from gates.processes import is_own, is_up, orphans, own_container
from node.rules.engine import (
    CONTEXT_MIB,
    LEAK,
    USUALLY_TAKEN,
    card_need,
    is_assigned,
    is_leaked,
    same_container,
    share_of,
)
from schema.plan import Node, Plan
from schema.recipe import ContainerSpec
from schema.render_engine import NVIDIA, cdi_asked, devices, runtime_asked
from schema.snapshot import ComputeProcess, Docker, Gpu, Gpus, Memory, NodeSnapshot

# Driver and memory.

# Gates of the NVIDIA driver: present, enough GPUs, the same version on every node.


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
    drivers, found = collect_check(plan, observed, lambda _, s: require(s.gpus, "gpus"))
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


DRIVER_GATES = (driver_present, driver_equal)


# Gate of docker's way to the GPUs: the runtime, the hook or the CDI device that it needs.

ALL_BY_CDI = "nvidia.com/gpu=all"
RUNTIME_HOOK, CDI_HOOK = "nvidia-container-runtime-hook", "nvidia-cdi-hook"
# from there on `--gpus` is served by CDI where the hook of CDI is there (moby#50228)
GPUS_BY_CDI = (29, 2)

TOOLKIT = "sudo apt-get install nvidia-container-toolkit && sudo systemctl restart docker"
CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
GENERATE = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


@per_node
def gpus_for_containers(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The start ends at once where docker lacks what the recipe asks it for.

    A stock DGX OS has NVIDIA's toolkit, not its runtime (gpustack#3654, dgx-spark-playbooks#26);
    a host with the toolkit's base package alone has CDI and no hook for `--gpus`.
    """
    box = plan.recipe.container
    if box is None or not (box.runtime or box.gpus):
        return
    docker = require(snapshot.docker, "docker")
    found = _lacking(box, docker)
    if found is None:
        return
    lacks, remedy = found
    yield violation(
        "docker-gpus",
        node.name,
        f"docker of {node.name} {lacks}",
        evidence=f"docker {docker.version}: runtimes {_listed(docker.runtimes)}; CDI devices "
        f"{_listed(docker.cdi_devices)}; on PATH {_listed(docker.gpu_hooks)}",
        remedy=remedy.format(node=node.name, recipe=f"catalog/recipes/{plan.recipe.name}.yaml"),
    )


def _lacking(box: ContainerSpec, docker: Docker) -> tuple[str, str] | None:
    """What docker lacks for this container, in words, and what mends it."""
    runtime, devices = runtime_asked(box), cdi_asked(box)
    if runtime is not None and runtime not in docker.runtimes:
        lacks = f"has no runtime {runtime}"
        if runtime != NVIDIA:
            return lacks, "in {recipe}: container.runtime, one of those, or none"
        return lacks, f"{_instead(docker)}on {{node}}: {CONFIGURE}"
    missing = [name for name in devices if name not in docker.cdi_devices]
    if missing:
        return f"knows no CDI device {', '.join(missing)}", f"on {{node}}: {GENERATE}"
    if box.gpus and not devices and not _gpus_served(docker):
        return "has nothing that serves --gpus", f"{_instead(docker)}on {{node}}: {TOOLKIT}"
    return None


def _instead(docker: Docker) -> str:
    """The change of the recipe that does without, where this docker has another way."""
    if _gpus_served(docker):
        return "in {recipe}: container.gpus: all, in place of container.runtime; or "
    if ALL_BY_CDI in docker.cdi_devices:
        return f"in {{recipe}}: container.gpus: {ALL_BY_CDI}; or "
    return ""


def _gpus_served(docker: Docker) -> bool:
    """Whether `docker run --gpus` finds what it needs (moby, daemon/devices_nvidia_linux.go)."""
    if RUNTIME_HOOK in docker.gpu_hooks:
        return True
    version = tuple(map(int, re.findall(r"\d+", docker.version)[:2]))
    return (
        version >= GPUS_BY_CDI
        and CDI_HOOK in docker.gpu_hooks
        and any(name.startswith("nvidia.com/gpu=") for name in docker.cdi_devices)
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


GPU_ACCESS_GATES = (gpus_for_containers,)


# Gates of memory: enough of it for the start that vLLM will ask for.

# vLLM's own defaults, for recipes that leave the value out.
DEFAULT_UTILIZATION = 0.9
DEFAULT_CPU_KVCACHE_GIB = 4.0
CPU_FLOOR_GIB = 2.0

DROP_CACHES = "sync && echo 3 | sudo tee /proc/sys/vm/drop_caches"


def utilization(plan: Plan, node: Node) -> float:
    """The share of the total memory that vLLM takes."""
    flags = plan.specs[node.name].flags
    return float(str(flags.get("gpu_memory_utilization", DEFAULT_UTILIZATION)))


def free_after_drop(memory: Memory) -> int:
    """MemFree once the clean page cache is dropped."""
    return memory.free + max(0, memory.page_cache - memory.dirty)


def system_evidence(memory: Memory, need: int) -> str:
    """The numbers that tell page cache from shared memory from what processes hold."""
    helps = "would" if max(memory.available, free_after_drop(memory)) >= need else "would not"
    return (
        f"MemTotal {gib(memory.total)}, MemAvailable {gib(memory.available)}, MemFree "
        f"{gib(memory.free)}, page cache {gib(memory.page_cache)}, Shmem {gib(memory.shmem)}, in "
        f"no category {gib(memory.unaccounted)}; needed {gib(need)}; dropping the clean page cache "
        f"{helps} be enough"
    )


@per_node
def memory_enough(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """vLLM refuses to start below ceil(total times gpu_memory_utilization) free (C11, B2).

    A GB10's GPU memory is the system's, and vLLM takes MemAvailable for it (vllm#35356) when
    Python, CUDA and NCCL have taken theirs (GLM-5.3-Flash-EXL3-2x#47): what the last start took is
    counted, or, as a warning, what one usually takes. Our own running engine holds that memory
    rightly: then there is nothing to ask for.
    """
    if is_up(snapshot):
        return
    need = system_need(plan, node, snapshot)
    if need is not None:
        yield from _system(plan, node, snapshot, need)
        return
    yield from _cards(plan, node, snapshot)


def _cards(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """What the cards that the engine gets lack."""
    chosen = devices(plan.recipe, plan.specs[node.name])
    gpus = [
        gpu
        for gpu in require(snapshot.gpus, "gpus").gpus
        if is_assigned(gpu.index, gpu.uuid, chosen)
    ]
    for gpu in sorted(gpus, key=lambda gpu: gpu.index)[: gpus_needed(plan, node)]:
        yield from _discrete(plan, node, gpu, snapshot)


def system_need(plan: Plan, node: Node, snapshot: NodeSnapshot) -> int | None:
    """The bytes of system memory that the engine's start asks for; None on a discrete card.

    UnknownSection when the host could not say what GPUs or memory it has.
    """
    if not plan.recipe.expect.needs_nvidia:
        return _cpu_need(plan, node)
    if any(gpu.unified_memory for gpu in require(snapshot.gpus, "gpus").gpus):
        return share_of(require(snapshot.memory, "memory").total, utilization(plan, node))
    return None


def _cpu_need(plan: Plan, node: Node) -> int:
    space = float(plan.specs[node.name].environ.get("VLLM_CPU_KVCACHE_SPACE") or 0)
    # Each rank keeps a cache of its own.
    caches = (space or DEFAULT_CPU_KVCACHE_GIB) * gpus_needed(plan, node)
    return ceil((caches + CPU_FLOOR_GIB) * GIB)


def _system(plan: Plan, node: Node, snapshot: NodeSnapshot, need: int) -> Iterator[Violation]:
    memory = require(snapshot.memory, "memory")
    nvidia = plan.recipe.expect.needs_nvidia
    took = (memory.start_took if memory.start_took is not None else USUALLY_TAKEN) if nvidia else 0
    if memory.available < need:
        yield violation(
            "memory-short",
            node.name,
            f"{node.name} has {gib(memory.available)} available, the engine needs {gib(need)}",
            evidence=system_evidence(memory, need),
            remedy=_mend(node, snapshot, memory, need),
        )
    elif memory.available - took < need:
        measured = memory.start_took is not None
        words = "took the last time" if measured else "usually takes, and none was measured yet"
        yield violation(
            "memory-short",
            node.name,
            f"{node.name} has {gib(memory.available)} available; without the {gib(took)} that a "
            f"start itself {words}, less is left than the engine needs, {gib(need)}",
            evidence=system_evidence(memory, need),
            remedy=f"in catalog/recipes/{plan.recipe.name}.yaml: gpu_memory_utilization: "
            f"{_share(memory, took)}; or {_mend(node, snapshot, memory, need + took)}",
            severity=None if measured else "warn",
        )
    elif memory.free < need and nvidia:
        yield violation(
            "page-cache",
            node.name,
            f"{gib(memory.page_cache)} of page cache on {node.name}: a vLLM that counts MemFree "
            "refuses to start",
            evidence=system_evidence(memory, need),
            remedy=f"on {node.name}, before the launch and never during a load: {DROP_CACHES}",
        )


def _share(memory: Memory, took: int) -> str:
    """The largest utilization, to two digits, that what is left would serve."""
    return f"{max(0, (memory.available - took) * 100 // memory.total) / 100:.2f}"


def _mend(node: Node, snapshot: NodeSnapshot, memory: Memory, need: int) -> str:
    """What brings memory back: a reboot where nothing that can be ended holds it (eugr#257)."""
    users = len(require(snapshot.gpus, "gpus").processes) if memory.unaccounted >= LEAK else 1
    if is_leaked(memory.unaccounted, need - memory.available, users):
        return (
            f"reboot {node.name}: {gib(memory.unaccounted)} are held by no process and are no "
            "cache, as failed starts leave them behind"
        )
    return (
        f"on {node.name}: ps -eo pid,rss,args --sort=-rss | head; ls -l /dev/shm; end what is not "
        f"needed, then {DROP_CACHES}"
    )


def _discrete(plan: Plan, node: Node, gpu: Gpu, snapshot: NodeSnapshot) -> Iterator[Violation]:
    share = utilization(plan, node)
    if gpu.memory_total_mib is None or gpu.memory_free_mib is None:
        yield violation(
            "memory-short",
            node.name,
            f"GPU {gpu.index} ({gpu.name}) of {node.name} does not report its memory",
            evidence="nvidia-smi answers [N/A] for memory.total or memory.free, and the GPU is "
            "not one with unified memory",
            remedy=f"on {node.name}: nvidia-smi -q -d MEMORY; a driver that stays silent "
            "needs a reboot",
            unknown=True,
        )
        return
    free = gpu.memory_free_mib
    need = card_need(gpu.memory_total_mib, gpu.memory_used_mib, free, share)
    if free >= need + CONTEXT_MIB:
        return
    holders = [p for p in require(snapshot.gpus, "gpus").processes if p.gpu_uuid == gpu.uuid]
    listed = ", ".join(f"pid {p.pid} {p.process_name} {p.used_mib} MiB" for p in holders)
    numbers = (
        f"{gpu.name}: total {gpu.memory_total_mib} MiB, used {gpu.memory_used_mib} MiB, free "
        f"{free} MiB, needed {need} MiB; held by: "
    )
    if free >= need:
        yield violation(
            "memory-short",
            node.name,
            f"GPU {gpu.index} of {node.name} has {gib(free * MIB)} free; its CUDA context, up to "
            f"{CONTEXT_MIB} MiB, may leave less than the engine needs, {gib(need * MIB)}",
            evidence=numbers + (listed or "nobody"),
            remedy=f"in catalog/recipes/{plan.recipe.name}.yaml: gpu_memory_utilization: "
            f"{_card_share(gpu, free)}",
            severity="warn",
        )
        return
    yield violation(
        "memory-short",
        node.name,
        f"GPU {gpu.index} of {node.name} has {gib(free * MIB)} free, the engine needs "
        f"{gib(need * MIB)}",
        evidence=numbers
        + (listed or "no listed process (another namespace, a D-state process or a driver fault)"),
        remedy=_free_card(plan, node, snapshot, holders),
    )


def cards_after(ended: Mapping[str, Collection[int]]) -> Gate:
    """The gate of what cards will lack once our engine and, by node, these pids have ended.

    A start that cannot get its memory is refused before the engine that serves is stopped.
    """

    @per_node
    def cards_after_the_end(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        yield from _later(plan, node, snapshot, ended.get(node.name, ()))

    return cards_after_the_end


def _later(
    plan: Plan, node: Node, snapshot: NodeSnapshot, ended: Collection[int]
) -> Iterator[Violation]:
    """What cards lack without those processes and ours; nothing where memory is the system's."""
    if not plan.recipe.expect.needs_nvidia:
        return
    seen = require(snapshot.gpus, "gpus")
    if any(gpu.unified_memory for gpu in seen.gpus):
        return
    own = own_container(snapshot)
    gone = {p.pid for p in require(snapshot.engine_processes, "engine_processes")
            if is_own(snapshot, p)} | set(ended)  # fmt: skip
    leaving = [
        p for p in seen.processes
        if p.pid in gone
        or (own is not None and p.container_id and same_container(p.container_id, own.id))
    ]  # fmt: skip
    cards = {gpu.uuid: gpu for gpu in seen.gpus}
    for process in leaving:
        gpu = cards.get(process.gpu_uuid)
        if gpu is None or gpu.memory_free_mib is None or process.used_mib is None:
            return
        used = gpu.memory_used_mib
        cards[gpu.uuid] = gpu.model_copy(
            update={
                "memory_free_mib": gpu.memory_free_mib + process.used_mib,
                "memory_used_mib": None if used is None else max(0, used - process.used_mib),
            }
        )
    later = seen.model_copy(
        update={
            "gpus": tuple(cards[gpu.uuid] for gpu in seen.gpus),
            "processes": tuple(p for p in seen.processes if p not in leaving),
        }
    )
    yield from _cards(plan, node, snapshot.model_copy(update={"gpus": later}))


def _card_share(gpu: Gpu, free: int) -> str:
    """The largest utilization, to two digits, that surely starts with so many MiB free."""
    whole = (gpu.memory_used_mib or 0) + free
    return f"{max(0, (free - CONTEXT_MIB) * 100 // whole) / 100:.2f}"


def _free_card(
    plan: Plan, node: Node, snapshot: NodeSnapshot, holders: Sequence[ComputeProcess]
) -> str:
    """What ends those who hold a card: `restart` orphans, a person all others."""
    if not holders:
        return f"reboot {node.name}: no process that could be ended holds it"
    left = {process.pid for process, _ in orphans(plan, snapshot)}
    pids = [str(one.pid) for one in holders if one.pid not in left]
    ways = []
    if len(pids) < len(holders):
        ways.append(f"{deploy_command(plan, 'restart')} --dry shows whether it ends the orphans")
    if pids:
        ways.append(
            f"on {node.name}: ps -o pid,user,lstart,args -p {','.join(pids)}; and where nobody "
            f"needs it: sudo kill {' '.join(pids)}"
        )
    return "; ".join(ways)


GPU_MEMORY_GATES = (memory_enough,)
