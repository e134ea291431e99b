"""The arguments of `docker run` that give the engine's container its GPUs."""

from __future__ import annotations

from schema.recipe.recipe import ContainerSpec

NVIDIA = "nvidia"


def gpu_arguments(box: ContainerSpec) -> list[list[str]]:
    """The groups of arguments; none for an engine without GPUs.

    CDI devices go by `--device`, everything else by `--gpus`.
    """
    groups = []
    runtime = runtime_asked(box)
    if runtime is not None:
        groups.append(["--runtime", runtime])
    if cdi_asked(box):
        groups += [["--device", name] for name in cdi_asked(box)]
    elif box.gpus:
        groups.append(["--gpus", box.gpus])
    return groups


def runtime_asked(box: ContainerSpec) -> str | None:
    """The runtime that docker is asked for; None: its default.

    `--gpus` and CDI do all that NVIDIA's runtime does, and a stock DGX OS has the runtime
    unregistered: `unknown or invalid runtime name: nvidia` (gpustack#3654, dgx-spark-playbooks#26).
    """
    return None if box.runtime == NVIDIA and box.gpus else box.runtime


def cdi_asked(box: ContainerSpec) -> tuple[str, ...]:
    """The CDI devices that `gpus` names (nvidia.com/gpu=all), separated by commas."""
    names = (box.gpus or "").split(",")
    return tuple(names) if all("/" in name and "=" in name for name in names) else ()
