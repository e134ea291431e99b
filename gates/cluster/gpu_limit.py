"""Gates of a Deployment on a shared GPU: its memory limit, its pods, and what their logs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gates.cluster import memory_limit
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.observed.kube import KubeLook, ModelFiles

DEPLOY = "pyinfra INVENTORY deploys/gpu_limit.py"


def limits_readable(node: str, now: KubeLook) -> Iterator[Violation]:
    """`0m` is 0 bytes to HAMi-core, which then reports `Total VRAM: 0 MiB` (A3)."""
    for name, found in now.variables.items():
        if not name.startswith(memory_limit.VARIABLE) or found.value is None:
            continue
        try:
            memory_limit.parse_limit(found.value)
        except memory_limit.LimitError as error:
            yield violation(
                "gpu-limit",
                node,
                f"{name} of Deployment {now.name} is {found.value!r}",
                evidence=str(error),
                remedy=f"{DEPLOY} --data limit=24000m (computed for your card)",
            )


def limits_inside(node: str, now: KubeLook) -> Iterator[Violation]:
    """What a pod's processes have counts: the plugin may set the variable too (fault 49), and
    Olares sets `0m` where the template has none (A3).
    """
    for pod in now.pods:
        for name, values in pod.live.values.items():
            wanted = now.variables[name].value if name in now.variables else None
            for value in values:
                if not name.startswith(memory_limit.VARIABLE) or value == wanted:
                    continue
                try:
                    memory_limit.parse_limit(value)
                    wrong = "" if wanted is None else f"the template says {wanted!r}"
                except memory_limit.LimitError as error:
                    wrong = str(error)
                if wrong:
                    yield violation(
                        "gpu-limit",
                        node,
                        f"{name} inside {pod.name} is {value!r}",
                        evidence=f"{wrong}; read in {pod.live.processes} processes of the pod",
                        remedy=f"{DEPLOY} --data limit=24000m (computed for your card); where the "
                        "plugin or the image's start sets it later, change it there",
                    )


def limit_enough(node: str, now: KubeLook) -> Iterator[Violation]:
    """`Device N OOM <wanted> / <allowed>`: the engine dies at its first request (A5)."""
    lines = [line for pod in now.pods for line in pod.log]
    worst = memory_limit.largest(memory_limit.ooms(lines), None)
    if worst is not None:
        lack = worst.wanted - worst.allowed
        yield violation(
            "gpu-limit-short",
            node,
            f"device {worst.device} of Deployment {now.name} wants more than its limit allows",
            evidence=f"Device {worst.device} OOM {worst.wanted} / {worst.allowed}: "
            f"{memory_limit.shown(lack)} too little",
            remedy=f"{DEPLOY} --data wanted={worst.wanted}",
        )


def pods_run(node: str, now: KubeLook) -> Iterator[Violation]:
    """A pod in a crash loop serves nobody, whatever the Deployment is called."""
    for pod in now.pods:
        if pod.stuck and not pod.leaving:
            last = next((line for line in reversed(pod.log) if line.strip()), "no log")
            yield violation(
                "pod-stuck",
                node,
                f"{pod.name} does not come up: {pod.stuck}, {pod.restarts} restarts",
                evidence=f"{last[:300]}; event: {now.event or 'none'}",
                remedy=f"on {node}: sudo kubectl logs {pod.name} --previous",
            )


def models_fit(node: str, seen: ModelFiles, wanted: Mapping[str, str]) -> Iterator[Violation]:
    """Each file is whole and of its loader's format: `invalid magic characters` comes late (A2)."""
    for file in seen.files:
        kind = wanted[file.path]
        wrong = file.broken
        if file.format is not None and file.format != kind:
            wrong = f"it is {file.format}; its loader reads {kind}"
        if wrong:
            yield violation(
                "model-file",
                node,
                f"{file.path} on {node} is not what its loader reads",
                evidence=wrong if file.size is None else f"{wrong} ({file.size} bytes)",
                remedy=f"on {node}: download it again as {kind}, or name the format that the "
                "loader reads in group_data (models)",
                unknown=file.size is None,
            )
