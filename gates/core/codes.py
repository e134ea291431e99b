"""Every code that a gate may report: its layer, its severity, and whether it can be waived.

A new gate adds its code here and a `## code` section to docs/gates.md; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gates.core.violation import Layer, Violation
from schema.observed.snapshot import Unreadable

Severity = Literal["block", "warn"]


@dataclass(frozen=True)
class Code:
    """What is fixed about a code; `waivable` False where a waiver would break P1, P4 or P5."""

    layer: Layer
    severity: Severity = "block"
    waivable: bool = True


CODES: dict[str, Code] = {
    "nodes-reachable": Code(Layer.FIRMWARE, waivable=False),
    "other-rig": Code(Layer.FIRMWARE, waivable=False),
    "hardware-unreadable": Code(Layer.FIRMWARE),
    "hands-needed": Code(Layer.FIRMWARE),
    "wol-card": Code(Layer.FIRMWARE, waivable=False),
    "wol-unarmed": Code(Layer.FIRMWARE, "warn"),
    "clock-skew": Code(Layer.KERNEL, "warn"),
    "clock-jump": Code(Layer.KERNEL, "warn"),
    "rebooted-midway": Code(Layer.KERNEL, "warn"),
    "rebooted-unasked": Code(Layer.KERNEL, "warn"),
    "reboot-loop": Code(Layer.KERNEL, "warn"),
    "host-unreadable": Code(Layer.KERNEL, "warn"),
    "host-differs": Code(Layer.KERNEL, "warn"),
    "sysctl-differs": Code(Layer.KERNEL, "warn"),
    "sysctls-unreadable": Code(Layer.KERNEL),
    "kernel-unreadable": Code(Layer.KERNEL),
    "health-unreadable": Code(Layer.KERNEL),
    "kernel-crash": Code(Layer.KERNEL, "warn"),
    "machine-check": Code(Layer.KERNEL, "warn"),
    "task-hung": Code(Layer.KERNEL, "warn"),
    "pcie-errors": Code(Layer.KERNEL, "warn"),
    "pcie-link": Code(Layer.KERNEL, "warn"),
    "boot-unknown": Code(Layer.KERNEL),
    "boot-no-kernel": Code(Layer.KERNEL),
    "boot-no-driver": Code(Layer.KERNEL),
    "kernel-known-bad": Code(Layer.KERNEL),
    "boot-room": Code(Layer.KERNEL),
    "boot-sticky": Code(Layer.KERNEL),
    "grubenv-bad": Code(Layer.KERNEL, waivable=False),
    "not-pinned": Code(Layer.KERNEL, waivable=False),
    "pin-entry": Code(Layer.KERNEL, waivable=False),
    "pin-gone": Code(Layer.KERNEL),
    "pin-no-driver": Code(Layer.KERNEL),
    "driver-unreadable": Code(Layer.DRIVER),
    "driver-version": Code(Layer.DRIVER, waivable=False),
    "driver-plan": Code(Layer.DRIVER, waivable=False),
    "driver-dpkg": Code(Layer.DRIVER, waivable=False),
    "driver-old-gone": Code(Layer.DRIVER, waivable=False),
    "driver-users": Code(Layer.DRIVER, waivable=False),
    "driver-headers": Code(Layer.DRIVER, waivable=False),
    "driver-unsigned": Code(Layer.DRIVER),
    "driver-room": Code(Layer.DRIVER),
    "gpu-lost": Code(Layer.DRIVER),
    "driver-library": Code(Layer.DRIVER),
    "driver-missing": Code(Layer.DRIVER),
    "driver-mismatch": Code(Layer.DRIVER),
    "driver-known-bad": Code(Layer.DRIVER),
    "driver-stand-in": Code(Layer.DRIVER, "warn"),
    "gpu-xid": Code(Layer.DRIVER, "warn"),
    "gpu-memory-errors": Code(Layer.DRIVER, "warn"),
    "gpu-throttled": Code(Layer.DRIVER, "warn"),
    "gpu-hot": Code(Layer.DRIVER, "warn"),
    "persistence-off": Code(Layer.DRIVER, "warn"),
    "memory-unreadable": Code(Layer.MEMORY),
    "shm-unreadable": Code(Layer.MEMORY),
    "memory-short": Code(Layer.MEMORY),
    "page-cache": Code(Layer.MEMORY, "warn"),
    "shm-stale": Code(Layer.MEMORY, "warn"),
    "memory-kill": Code(Layer.MEMORY, "warn"),
    "guard-missing": Code(Layer.MEMORY, waivable=False),
    "guard-tight": Code(Layer.MEMORY),
    "engine-processes-unreadable": Code(Layer.PROCESSES),
    "ports-unreadable": Code(Layer.PROCESSES),
    "engine-orphan": Code(Layer.PROCESSES),
    "port-taken": Code(Layer.PROCESSES),
    "foreign-engine": Code(Layer.PROCESSES, "warn"),
    "connections-unreadable": Code(Layer.PROCESSES),
    "network-unreadable": Code(Layer.FABRIC),
    "fabric-down": Code(Layer.FABRIC),
    "fabric-address": Code(Layer.FABRIC),
    "fabric-mtu": Code(Layer.FABRIC),
    "fabric-route": Code(Layer.FABRIC),
    "fabric-ping": Code(Layer.FABRIC),
    "rdma-missing": Code(Layer.FABRIC),
    "rdma-port": Code(Layer.FABRIC, "warn"),
    "rdma-gid": Code(Layer.FABRIC),
    "rdma-address": Code(Layer.FABRIC),
    "rdma-rate": Code(Layer.FABRIC, "warn"),
    "bond-slave-down": Code(Layer.FABRIC, "warn"),
    "nic-errors": Code(Layer.FABRIC, "warn"),
    "nic-firmware": Code(Layer.FABRIC, "warn"),
    "fabric-volatile": Code(Layer.FABRIC, "warn"),
    "transfer-port": Code(Layer.FABRIC),
    "transfer-way": Code(Layer.FABRIC),
    "disks-unreadable": Code(Layer.STORAGE),
    "disk-errors": Code(Layer.STORAGE, "warn"),
    "disk-read-only": Code(Layer.STORAGE, "warn"),
    "disk-wear": Code(Layer.STORAGE, "warn"),
    "disk-room": Code(Layer.STORAGE),
    "growth-unreadable": Code(Layer.STORAGE, "warn"),
    "growth-large": Code(Layer.STORAGE, "warn"),
    "transfer-room": Code(Layer.STORAGE),
    "journal-unreadable": Code(Layer.STORAGE, waivable=False),
    "journal-broken": Code(Layer.STORAGE, waivable=False),
    "lock-held": Code(Layer.STORAGE, waivable=False),
    "change-open": Code(Layer.STORAGE, waivable=False),
    "change-inconsistent": Code(Layer.STORAGE, waivable=False),
    "docker-unreadable": Code(Layer.CONTAINER, waivable=False),
    "docker-gpus": Code(Layer.CONTAINER),
    "cdi-stale": Code(Layer.CONTAINER, "warn"),
    "jit-cache-owner": Code(Layer.CONTAINER),
    "jit-cache-cold": Code(Layer.CONTAINER, "warn"),
    "image-missing": Code(Layer.CONTAINER),
    "image-differs": Code(Layer.CONTAINER),
    "image-arch": Code(Layer.CONTAINER),
    "image-files-unreadable": Code(Layer.CONTAINER),
    "patch-missing": Code(Layer.CONTAINER),
    "patch-doubled": Code(Layer.CONTAINER),
    "restart-policy": Code(Layer.CONTAINER),
    "venvs-unreadable": Code(Layer.CONTAINER, waivable=False),
    "venv-missing": Code(Layer.CONTAINER),
    "venv-python-missing": Code(Layer.CONTAINER),
    "venv-entry-missing": Code(Layer.CONTAINER),
    "venv-version": Code(Layer.CONTAINER),
    "venv-user": Code(Layer.CONTAINER),
    "remove-ipc": Code(Layer.CONTAINER),
    "cluster-unreadable": Code(Layer.CONTAINER, waivable=False),
    "units-unreadable": Code(Layer.UNIT, waivable=False),
    "unit-ghost": Code(Layer.UNIT),
    "other-recipe": Code(Layer.UNIT),
    "files-unreadable": Code(Layer.UNIT, waivable=False),
    "drop-in-no-reset": Code(Layer.UNIT),
    "unit-not-reloaded": Code(Layer.UNIT, "warn"),
    "unit-disabled": Code(Layer.UNIT, "warn"),
    "second-unit": Code(Layer.UNIT),
    "cron-unreadable": Code(Layer.UNIT),
    "second-supervisor": Code(Layer.UNIT),
    "script-ghost": Code(Layer.UNIT),
    "crash-loop": Code(Layer.UNIT),
    "engine-down": Code(Layer.UNIT),
    "wedged-pair": Code(Layer.UNIT),
    "watch-unreadable": Code(Layer.UNIT),
    "wedged-silent": Code(Layer.UNIT),
    "stood-down": Code(Layer.UNIT, "warn"),
    "pod-stuck": Code(Layer.UNIT),
    "weights-unreadable": Code(Layer.ARTIFACT),
    "weights-incomplete": Code(Layer.ARTIFACT),
    "weights-missing": Code(Layer.ARTIFACT),
    "weights-differ": Code(Layer.ARTIFACT),
    "weights-magic": Code(Layer.ARTIFACT),
    "weights-cut": Code(Layer.ARTIFACT),
    "weights-shards-missing": Code(Layer.ARTIFACT),
    "weights-mount": Code(Layer.ARTIFACT),
    "version-broken": Code(Layer.ARTIFACT),
    "version-unknown": Code(Layer.ARTIFACT, "warn"),
    "torch-cpu": Code(Layer.ARTIFACT),
    "torch-variant": Code(Layer.ARTIFACT),
    "wheel-missing": Code(Layer.ARTIFACT, waivable=False),
    "pip-report-unreadable": Code(Layer.ARTIFACT, waivable=False),
    "old-wheel-missing": Code(Layer.ARTIFACT, "warn"),
    "backup-required": Code(Layer.ARTIFACT, waivable=False),
    "patch-drifted": Code(Layer.ARTIFACT),
    "patch-unknown": Code(Layer.ARTIFACT, waivable=False),
    "module-missing": Code(Layer.ARTIFACT),
    "model-file": Code(Layer.ARTIFACT),
    "libvgpu-unreadable": Code(Layer.ARTIFACT, waivable=False),
    "libvgpu-target": Code(Layer.ARTIFACT, waivable=False),
    "libvgpu-preload": Code(Layer.ARTIFACT, "warn"),
    "libvgpu-other": Code(Layer.ARTIFACT),
    "libvgpu-candidate": Code(Layer.ARTIFACT, waivable=False),
    "libvgpu-symbols": Code(Layer.ARTIFACT),
    "libvgpu-drift": Code(Layer.ARTIFACT),
    "libvgpu-old-mapped": Code(Layer.ARTIFACT, "warn"),
    "gpu-limit": Code(Layer.RECIPE),
    "gpu-limit-short": Code(Layer.RECIPE),
    "gpu-limit-drift": Code(Layer.RECIPE),
    "forbidden-env": Code(Layer.RECIPE),
    "secret-missing": Code(Layer.RECIPE, waivable=False),
    "arguments-refused": Code(Layer.RECIPE),
    "arguments-unchecked": Code(Layer.RECIPE, "warn"),
    "hca-two-ports": Code(Layer.RECIPE, "warn"),
    "enforce-eager": Code(Layer.RECIPE, "warn"),
    "image-latest": Code(Layer.RECIPE, "warn"),
    "privileged": Code(Layer.RECIPE, "warn"),
    "worker-not-headless": Code(Layer.RECIPE, "warn"),
    "json-quotes-lost": Code(Layer.RECIPE, "warn"),
    "drift": Code(Layer.RECIPE, "warn"),
    "answer-slow": Code(Layer.ENDPOINT, "warn"),
    "cannot-answer": Code(Layer.ENDPOINT, waivable=False),
    "no-answer": Code(Layer.ENDPOINT, waivable=False),
    "gate-error": Code(Layer.ENDPOINT, waivable=False),
}

UNWAIVABLE = frozenset(code for code, what in CODES.items() if not what.waivable)


def violation(
    code: str,
    node: str | None,
    summary: str,
    *,
    evidence: str,
    remedy: str,
    severity: Severity | None = None,
    unknown: bool = False,
    cause: str = "",
) -> Violation:
    """A Violation of a known code, with that code's layer and (unless given) its severity."""
    what = CODES[code]
    return Violation(
        code, what.layer, severity or what.severity, summary, evidence, remedy, node, unknown, cause
    )


def section_unreadable(node: str, section: str, found: Unreadable) -> Violation:
    """The blocking finding for a section of a snapshot that its host could not report (P5).

    GPUs that cannot be asked for are a driver that is missing, whatever the reason.
    """
    code = "driver-missing" if section == "gpus" else f"{section.replace('_', '-')}-unreadable"
    return violation(
        code,
        node,
        f"{section} of {node} could not be read, so nothing about it is known",
        evidence=found.unreadable,
        remedy=f"on {node}: mend what the evidence names, then run this again",
        unknown=True,
    )
