"""A violation, the codes, a gate's frame, waivers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from typing import Literal, TypeVar

from node.rules.text import printable
from schema.core import SpecError, single_line, unknown
from schema.plan import Node, Plan
from schema.snapshot import NodeSnapshot, Unreadable

# Violations, their codes, waivers, and how a gate reads a section of a snapshot.

# A gate's finding: what is wrong, how we know, and the command that mends it.


class Layer(IntEnum):
    """Where a cause lives. Lowest first: a lower finding usually explains the higher ones."""

    FIRMWARE = 1
    KERNEL = 2
    DRIVER = 3
    MEMORY = 4
    PROCESSES = 5
    FABRIC = 6
    STORAGE = 7
    CONTAINER = 8
    UNIT = 9
    ARTIFACT = 10
    RECIPE = 11
    ENDPOINT = 12


@dataclass(frozen=True)
class Violation:
    """One finding on one node (or on the rig, node None).

    `code` is stable and has a section in docs/gates.md. `severity` "block" stops every deploy
    that changes something; "warn" is shown. `remedy` is a command or an action a person can take.
    `unknown` marks a finding that exists because something could not be read (it blocks, too).
    `cause` is this finding's likely cause where it can be told better than gates/doctor.py
    does."""

    code: str
    layer: Layer
    severity: Literal["block", "warn"]
    summary: str
    evidence: str
    remedy: str
    node: str | None = None
    unknown: bool = False
    cause: str = ""

    def __post_init__(self) -> None:
        """What a host said stands in these lines: no escape and no newline leaves with them."""
        for name in ("summary", "evidence", "remedy", "cause"):
            object.__setattr__(self, name, printable(getattr(self, name)))


# Every code that a gate may report: its layer, its severity, and whether it can be waived.
#
# A new gate adds its code here and a `## code` section to docs/gates.md; a test compares the two.

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
    "boot-sticky": Code(Layer.KERNEL, waivable=False),
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
    "backups-unreadable": Code(Layer.STORAGE, "warn"),
    "backup-one-disk": Code(Layer.STORAGE, "warn"),
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
    "weights-denied": Code(Layer.RECIPE),
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
    "no-way-here": Code(Layer.ENDPOINT, "warn"),
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


# What gates are made of: the observed rig, sections that must be known, and small texts.

Observed = Mapping[str, NodeSnapshot | Unreadable]
Gate = Callable[[Plan, Observed], list[Violation]]
NodeGate = Callable[[Plan, Node, NodeSnapshot], Iterator[Violation]]
T = TypeVar("T")

MIB = 1024**2
GIB = 1024**3


class UnknownSection(Exception):
    """Raised by `require` for a section that the host could not report."""

    def __init__(self, section: str, found: Unreadable) -> None:
        super().__init__(f"{section}: {found.unreadable}")
        self.section = section
        self.found = found


def require(value: T | Unreadable, section: str) -> T:
    """The section's value; UnknownSection when the host could not report it."""
    if isinstance(value, Unreadable):
        raise UnknownSection(section, value)
    return value


def answering_nodes(plan: Plan, observed: Observed) -> Iterator[tuple[Node, NodeSnapshot]]:
    """The nodes of the rig that answered, in rank order (`nodes-reachable` names the others)."""
    for node in plan.rig.nodes:
        snapshot = observed.get(node.name)
        if isinstance(snapshot, NodeSnapshot):
            yield node, snapshot


def per_node(gate: NodeGate) -> Gate:
    """Runs a node's gate on every node that answered; an unknown section blocks that node."""

    @wraps(gate)
    def run(plan: Plan, observed: Observed) -> list[Violation]:
        found: list[Violation] = []
        for node, snapshot in answering_nodes(plan, observed):
            try:
                for violation in gate(plan, node, snapshot):
                    found.append(violation)
            except UnknownSection as unknown:
                found.append(section_unreadable(node.name, unknown.section, unknown.found))
        return found

    return run


def collect_check(
    plan: Plan, observed: Observed, read: Callable[[Node, NodeSnapshot], T]
) -> tuple[list[tuple[Node, T]], list[Violation]]:
    """What `read` says of each node that answered, and a finding for each that cannot say.

    For gates that compare nodes: the first value is the head's where the head answered.
    """
    values: list[tuple[Node, T]] = []
    unknown: list[Violation] = []
    for node, snapshot in answering_nodes(plan, observed):
        try:
            values.append((node, read(node, snapshot)))
        except UnknownSection as missing:
            unknown.append(section_unreadable(node.name, missing.section, missing.found))
    return values, unknown


def deploy_command(plan: Plan, deploy: str, *data: str) -> str:
    """The command line of one of our deploys; INVENTORY is the operator's, who alone knows it."""
    options = "".join(f" --data {shlex.quote(item)}" for item in data)
    return f"pyinfra INVENTORY deploys/{deploy}.py{options}"


def gib(size: float) -> str:
    """A size in GiB with two digits."""
    return f"{size / GIB:.2f} GiB"


# Waivers: `--data waive=CODE --data reason="…"` lets one known risk pass, in writing.


def blocking(violations: Iterable[Violation]) -> list[Violation]:
    """The findings that stop every deploy which changes something."""
    return [found for found in violations if found.severity == "block"]


def apply_waivers(
    violations: Sequence[Violation], waive: tuple[str, ...], reason: str | None
) -> tuple[list[Violation], list[Violation]]:
    """(what remains, what was waived); SpecError for a waiver that is not allowed.

    A code is waived on all nodes. The reason goes to the journal, so there must be one.
    """
    problems = [f"--data waive: {unknown('code', c, CODES)}" for c in waive if c not in CODES]
    problems += [
        f"--data waive: {code} cannot be waived; mend it as docs/gates.md says "
        f"(never waived: {', '.join(sorted(UNWAIVABLE))})"
        for code in waive
        if code in UNWAIVABLE
    ]
    problems += _reason_problems(waive, reason)
    if problems:
        raise SpecError(*problems)
    waived = [found for found in violations if found.code in waive]
    return [found for found in violations if found.code not in waive], waived


def _reason_problems(waive: tuple[str, ...], reason: str | None) -> list[str]:
    if not waive:
        return []
    if reason is None or not reason.strip():
        return ['--data waive needs --data reason="…"; it is written to the journal']
    try:
        single_line(reason)
    except ValueError as error:
        return [f"--data reason {error}"]
    return []
