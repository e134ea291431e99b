"""Which kernel boots next; the pin."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace

from gates.core import Gate, Observed, Violation, deploy_command, per_node, require, violation
from schema.host import BootTarget, Grub, InstalledKernel, KernelFacts, KernelSnapshot
from schema.plan import Node, Plan
from schema.snapshot import NodeSnapshot, Unreadable

# The next boot, and a kernel pin.

# Gates of the next boot: which kernel GRUB will take, and whether its driver would be there.
#
# The seed's tower booted a kernel that apt had staged and that had no NVIDIA module (B4).

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


# Gates before a kernel is pinned, or booted once: it is there, it has its driver, GRUB can.

Wanted = Callable[[KernelFacts], str]


def wanted_release(name: str) -> Wanted:
    """From `current` or a release to the release that it means on a node."""
    return lambda facts: facts.running if name == "current" else name


def own_entries(grub: Grub, release: str) -> list[str]:
    """The id paths of a kernel's own entries: no recovery, no other system's, not the simple one.

    As node/kernel/boot.py, entries_of: the node looks again, under its lock.
    """
    rows = [(entry, entry.path.rpartition(">")[2]) for entry in grub.entries]
    mine = [(e, last) for e, last in rows if e.kernel == release]
    exact = [e.path for e, last in mine if last.startswith(f"gnulinux-{release}-advanced-")]
    if exact:
        return exact
    others = ("osprober-", "gnulinux-simple-", f"gnulinux-{release}-")
    return [e.path for e, last in mine if not last.startswith(others)]


def bootable(name: str, nodes: frozenset[str]) -> Gate:
    """The gate that a kernel's own part is there: installed, with its entry in GRUB's menu."""
    wanted = wanted_release(name)

    @per_node
    def pin_entry(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """The kernel is installed, GRUB has one entry for it, and its files are there (34)."""
        if node.name in nodes:
            yield from _entry(plan, node, kernel_facts(snapshot), wanted)

    return pin_entry


def pinnable(name: str, nodes: frozenset[str]) -> tuple[Gate, ...]:
    """The gates for pinning the kernel `name` on `nodes`."""
    wanted = wanted_release(name)

    @per_node
    def pin_driver(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """A pin is for good: only on a kernel that has its driver (35)."""
        if node.name not in nodes:
            return
        facts = kernel_facts(snapshot)
        release = wanted(facts)
        problem = driver_problem(facts, release)
        if problem is not None and kernel_of(facts, release) is not None:
            yield violation(
                "pin-no-driver",
                node.name,
                f"{release} on {node.name} would come up without its driver: {problem}",
                evidence=_drivers(facts),
                remedy=pin(plan, facts),
            )

    return (bootable(name, nodes), pin_driver, boot_room)


def bootable_once(name: str, nodes: frozenset[str]) -> tuple[Gate, ...]:
    """The gates for booting the kernel `name` once on `nodes`."""
    return (*pinnable(name, nodes), *falls_back(name, nodes))


def falls_back(name: str, nodes: frozenset[str]) -> tuple[Gate, ...]:
    """The gates that the boot after the one of `name` is that of a pinned kernel."""

    @per_node
    def is_pinned(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """The boot after the candidate's is the pinned one: it must be the kernel that runs."""
        if node.name not in nodes:
            return
        facts = kernel_facts(snapshot)
        if facts.loader != "grub":
            return
        grub = require(facts.grub, "kernel")
        if not grub.ours or grub.default.kernel != facts.running or grub.default.how != "saved":
            yield violation(
                "not-pinned",
                node.name,
                f"{node.name} has no pinned kernel to fall back to",
                evidence=f"runs {facts.running}; after the next boot comes "
                f"{grub.default.kernel}: {grub.default.why}",
                remedy=deploy_command(plan, "kernel", "kernel=current") + " -y",
            )

    @per_node
    def not_sticky(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """On LVM, RAID and the like GRUB cannot take next_entry back: once would be for ever."""
        if node.name not in nodes:
            return
        facts = kernel_facts(snapshot)
        if facts.loader != "grub":
            return
        place = require(facts.boot, "kernel")
        if place.sticky:
            yield violation(
                "boot-sticky",
                node.name,
                f"GRUB of {node.name} cannot boot a kernel just once: its folder lies on "
                f"{place.kind}",
                evidence=f"{place.source} on {place.mount} ({place.filesystem}); GRUB writes no "
                "environment block there",
                remedy="pin it for good: "
                + deploy_command(plan, "kernel", f"kernel={name}")
                + " -y, with somebody at the console; or move /boot to a plain partition",
            )

    return (is_pinned, not_sticky)


def _entry(plan: Plan, node: Node, facts: KernelFacts, wanted: Wanted) -> Iterator[Violation]:
    if facts.loader != "grub":
        yield violation(
            "pin-entry",
            node.name,
            f"{node.name} does not boot by GRUB ({facts.loader}); kernels are pinned in GRUB only",
            evidence=facts.loader_evidence,
            remedy="with systemd-boot: bootctl set-default ENTRY, by hand",
        )
        return
    grub, release = require(facts.grub, "kernel"), wanted(facts)
    found = kernel_of(facts, release)
    if grub.grubenv != "ok":
        yield violation(
            "grubenv-bad",
            node.name,
            f"{grub.folder}/grubenv of {node.name} is {grub.grubenv}",
            evidence="GRUB keeps its saved entry there; without it the first entry boots",
            remedy=f"on {node.name}: sudo grub-editenv "
            f"{shlex.quote(f'{grub.folder}/grubenv')} create",
        )
    if found is None or found.vmlinuz is None:
        there = [k.release for k in require(facts.kernels, "kernel") if k.vmlinuz]
        yield violation(
            "pin-entry",
            node.name,
            f"kernel {release} is not installed on {node.name}",
            evidence=f"installed: {', '.join(there) or 'none'}; runs {facts.running}",
            remedy=f"on {node.name}: sudo apt-get install "
            f"{shlex.quote(f'linux-image-{release}')}, or name another",
        )
        return
    missing = boot_problem(facts, grub, release)
    paths = own_entries(grub, release)
    if missing is None and len(paths) == 1:
        return
    known_kernels = sorted({e.kernel for e in grub.entries if e.kernel})
    yield violation(
        "pin-entry",
        node.name,
        missing or f"GRUB's menu of {node.name} has {len(paths)} entries for {release}",
        evidence=f"entries: {', '.join(paths) or 'none'}; kernels in the menu: "
        f"{', '.join(known_kernels) or 'none'}",
        remedy=f"on {node.name}: "
        + (f"sudo update-initramfs -c -k {shlex.quote(release)}; " if missing else "")
        + "sudo update-grub, and look at /etc/grub.d",
    )


def _drivers(facts: KernelFacts) -> str:
    rows = require(facts.kernels, "kernel")
    each = [f"{k.release}: {k.module.version if k.module else 'none'}" for k in rows]
    return f"{facts.module} modules: {'; '.join(each)}; programs load " + (
        ", ".join(facts.user_driver) or "none"
    )
