"""Gate of docker's way to the GPUs: the runtime, the hook or the CDI device that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gates.core.check import per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.docker import Docker
from schema.observed.snapshot import NodeSnapshot
from schema.recipe.recipe import ContainerSpec
from schema.render.gpu_access import NVIDIA, cdi_asked, runtime_asked

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


GATES = (gpus_for_containers,)
