"""Gates of a Deployment on a shared GPU: its memory limit, its pods, and what their logs say."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping

from gates.cluster import memory_limit
from gates.core.codes import section_unreadable, violation
from gates.core.violation import Violation
from schema.observed.kube import Guarded, KubeLook, ModelFiles
from schema.observed.snapshot import Unreadable

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


def limit_stayed(node: str, now: KubeLook) -> Iterator[Violation]:
    """A chart that is deployed again brings its own template: the limit is 0m once more (A3)."""
    if isinstance(now.guard, Unreadable):
        yield section_unreadable(node, "cluster", now.guard)
    elif now.guard is not None and now.guard.differs:
        values = ", ".join([*(f"{name}={value}" for name, value in now.guard.values.items()),
                            *map(repr, now.guard.edits.values())])  # fmt: skip
        yield violation(
            "gpu-limit-drift",
            node,
            f"Deployment {now.name} has lost what gpu_limit set",
            evidence=f"{'; '.join(now.guard.differs)}; guarded: {values}",
            remedy=f"{DEPLOY} --data guard=true {_again(now.guard)}",
        )


def _again(guard: Guarded) -> str:
    """The data that set what is guarded once more, as typed in a shell; of limits the first. The
    webhook's URL is the operator's to fill in.
    """
    rows: dict[str, dict[str, str]] = {"limit": {}, "edit": dict(guard.edits), "set": {}}
    for name, value in guard.values.items():
        rows["limit" if name.startswith(memory_limit.VARIABLE) else "set"][name] = value
    words = []
    for name, value in [*rows.pop("limit").items()][:1]:
        device = name.removeprefix(memory_limit.VARIABLE).removeprefix("_")
        words += [f"limit={value}", *([f"device={device}"] if device else [])]
    words += [f"{key}={json.dumps(values)}" for key, values in rows.items() if values]
    words += [f"webhook_file={guard.webhook_file}"] if guard.webhook_file else []
    words += ["webhook=URL"] if guard.webhook else []
    return " ".join(f"--data {shlex.quote(word)}" for word in words)


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
                remedy=f"on {node}: sudo kubectl logs {shlex.quote(pod.name)} --previous",
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
