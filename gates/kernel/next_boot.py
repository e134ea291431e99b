"""Gates of the next boot: which kernel GRUB will take, and whether its driver would be there.

The seed's tower booted a kernel that apt had staged and that had no NVIDIA module (B4).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from gates.core.check import Gate, Observed, deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.kernel import BootTarget, Grub, InstalledKernel, KernelFacts, KernelSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable

# An initrd, its copy while it is made anew, and a kernel.
BOOT_ROOM = 200 * 1024**2


def kernel_facts(snapshot: NodeSnapshot) -> KernelFacts:
    """The node's kernel facts; UnknownSection where they were not asked or not answered."""
    if not isinstance(snapshot, KernelSnapshot):
        return require(Unreadable(unreadable="nobody asked for it"), "kernel")
    return require(snapshot.kernel, "kernel")


def driver_problem(facts: KernelFacts, release: str) -> str | None:
    """Why this kernel would come up without its driver; None where it is proven that it will not.

    The module must be there for exactly this kernel and equal the driver that programs load.
    """
    if facts.module is None:
        return None
    found = kernel_of(facts, release)
    if found is None:
        return f"kernel {release} is not installed"
    name, module = facts.module, found.module
    if module is None:
        built = f" (dkms: {'; '.join(found.dkms)})" if found.dkms else ""
        return f"no {name} module for {release}{built}"
    if module.vermagic.split(" ", 1)[0] != release:
        return f"{module.path} was built for {module.vermagic.split(' ', 1)[0]}, not {release}"
    if not facts.user_driver:
        return f"no lib{name}-ml.so on the host: the driver that programs load is unknown"
    if module.version not in facts.user_driver:
        return (
            f"the {name} module for {release} is {module.version}, programs load "
            f"{', '.join(facts.user_driver)}"
        )
    if facts.secure_boot and module.signer is None:
        return f"Secure Boot is on and {module.path} is not signed"
    return None


def kernel_of(facts: KernelFacts, release: str) -> InstalledKernel | None:
    """The installed kernel of that release, or None; UnknownSection where nobody knows."""
    rows = require(facts.kernels, "kernel")
    return next((row for row in rows if row.release == release), None)


def boot_problem(facts: KernelFacts, grub: Grub, release: str) -> str | None:
    """Why this kernel cannot boot: its kernel or initrd is gone; None where both are there."""
    found = kernel_of(facts, release)
    if found is None or found.vmlinuz is None:
        return f"/boot/vmlinuz-{release} is not there"
    wants_initrd = any(e.initrd for e in grub.entries if e.kernel == release)
    if wants_initrd and found.initrd is None:
        return f"/boot/initrd.img-{release} is not there, or empty"
    return None


@per_node
def next_boot(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The next boot must land on a kernel that boots and has its driver (B4)."""
    facts = kernel_facts(snapshot)
    if facts.loader == "container":
        return
    if facts.loader != "grub":
        yield violation(
            "boot-unknown",
            node.name,
            f"{node.name} does not boot by GRUB ({facts.loader}): which kernel comes next is "
            "unknown",
            evidence=facts.loader_evidence,
            remedy=f"on {node.name}: bootctl list, and see that its default is "
            f"{shlex.quote(facts.running)}; "
            "then waive this",
            unknown=True,
        )
        return
    grub = require(facts.grub, "kernel")
    target = grub.next
    if target.kernel is None:
        yield violation(
            "boot-unknown",
            node.name,
            f"{node.name}: which kernel boots next cannot be told",
            evidence=f"entry {target.entry or 'none'}; {target.why}",
            remedy=pin(plan, facts),
            unknown=True,
        )
        return
    yield from _boots_with_driver(plan, node, facts, grub, target)


def _boots_with_driver(
    plan: Plan, node: Node, facts: KernelFacts, grub: Grub, target: BootTarget
) -> Iterator[Violation]:
    release = target.kernel or ""
    missing = boot_problem(facts, grub, release)
    problem = driver_problem(facts, release)
    if missing is not None:
        yield violation(
            "boot-no-kernel",
            node.name,
            f"{node.name} would boot {release} next, which cannot boot: {missing}",
            evidence=f"{target.why}; entry {target.entry}; runs {facts.running}",
            remedy=pin(plan, facts),
        )
    elif problem is not None:
        yield violation(
            "boot-no-driver",
            node.name,
            f"{node.name} would boot {release} next, without its driver: {problem}",
            evidence=f"{target.why}; runs {facts.running}, whose driver is "
            f"{driver_problem(facts, facts.running) or 'there'}",
            remedy=pin(plan, facts),
        )


@per_node
def pin_holds(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A pin that names what is no longer in the menu boots the first entry instead, silently."""
    facts = kernel_facts(snapshot)
    if facts.loader != "grub":
        return
    grub = require(facts.grub, "kernel")
    if grub.saves and grub.default.how == "first":
        yield violation(
            "pin-gone",
            node.name,
            f"the default of {node.name} is not in GRUB's menu: it boots "
            f"{grub.default.kernel or 'the first entry'}",
            evidence=grub.default.why,
            remedy=pin(plan, facts),
        )


@per_node
def boot_room(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Room in /boot for an initrd beside the old one: a full /boot leaves a cut one (fault 9)."""
    facts = kernel_facts(snapshot)
    if facts.loader != "grub":
        return
    place = require(facts.boot, "kernel")
    if place.read_only or place.free < BOOT_ROOM:
        yield violation(
            "boot-room",
            node.name,
            f"/boot of {node.name} "
            + ("is read-only" if place.read_only else f"has {place.free >> 20} MiB free"),
            evidence=f"{place.source} on {place.mount} ({place.filesystem}, {place.kind}); wanted "
            f"are {BOOT_ROOM >> 20} MiB",
            remedy=f"on {node.name}: sudo apt-get autoremove --purge (a pinned kernel stays)",
        )


def pin(plan: Plan, facts: KernelFacts) -> str:
    """The command that pins a kernel with a driver: the running one, else another that has it."""
    kernels = () if isinstance(facts.kernels, Unreadable) else facts.kernels
    # it runs, and its package is gone: it cannot be pinned as it is
    gone = any(k.release == facts.running and k.vmlinuz is None for k in kernels)
    current = deploy_command(plan, "kernel", "kernel=current") + " -y"
    if driver_problem(facts, facts.running) is None:
        package = shlex.quote(f"linux-image-{facts.running}")
        again = f"sudo apt-get install --reinstall {package} on the node, then "
        return again + current if gone else current
    good = [k.release for k in kernels if k.vmlinuz and driver_problem(facts, k.release) is None]
    if good:
        return deploy_command(plan, "kernel", f"kernel={good[-1]}") + " -y"
    return (
        f"no installed kernel has a {shlex.quote(facts.module or 'kernel')} module of the driver "
        f"{', '.join(map(shlex.quote, facts.user_driver)) or '(none)'}: install one (dkms "
        "autoinstall, or the driver's package)"
    )


def as_warning(gate: Gate) -> Gate:
    """The gate as a warning, for the doctor: the next boot does not stop today's serving."""

    def run(plan: Plan, observed: Observed) -> list[Violation]:
        return [replace(found, severity="warn") for found in gate(plan, observed)]

    return run


BOOT: tuple[Gate, ...] = (next_boot, pin_holds)
