"""Gates before a kernel is pinned, or booted once: it is there, it has its driver, GRUB can."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from gates.core.check import Gate, deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.kernel import next_boot
from gates.kernel.next_boot import driver_problem, kernel_facts, kernel_of
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.kernel import Grub, KernelFacts
from schema.observed.snapshot import NodeSnapshot

Wanted = Callable[[KernelFacts], str]


def wanted_release(name: str) -> Wanted:
    """From `current` or a release to the release that it means on a node."""
    return lambda facts: facts.running if name == "current" else name


def own_entries(grub: Grub, release: str) -> list[str]:
    """The id paths of a kernel's own entries: no recovery, no other system's, not the simple one.

    As node/kernel/grubcfg.py, entries_of: the node looks again, under its lock.
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
                remedy=next_boot.pin(plan, facts),
            )

    return (bootable(name, nodes), pin_driver, next_boot.boot_room)


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
    missing = next_boot.boot_problem(facts, grub, release)
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
