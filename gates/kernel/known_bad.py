"""Is the kernel that comes up next, or the one that is to be pinned, known to fail on this rig?

7.0.0-1019-nvidia was staged for days before the reboot that an unrelated crash brought: what runs
says nothing of what boots (MiaAI-Lab DSpark#259).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gates.artifact.compatibility import facts_of
from gates.artifact.known_bad import below
from gates.core.check import Gate, per_node, require
from gates.core.violation import Violation
from gates.kernel.next_boot import kernel_facts, kernel_of
from gates.kernel.pin import Wanted, own_entries, wanted_release
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.kernel import Grub, KernelFacts
from schema.observed.snapshot import NodeSnapshot
from schema.recipe.compatibility import CompatibilityTable


def boots(
    table: CompatibilityTable, name: str | None = None, nodes: frozenset[str] | None = None
) -> Gate:
    """The gate about the kernel that boots next on `nodes` (None: all), or about `name` (a release,
    or `current`), with the command line of its own menu entry and the driver of its module.
    """
    wanted = wanted_release(name) if name else None

    @per_node
    def boot_known_bad(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """A kernel that boots, with its driver, and on which the engine cannot start."""
        if nodes is not None and node.name not in nodes:
            return
        facts = kernel_facts(snapshot)
        if facts.loader != "grub":
            return  # boot-unknown names another loader
        release, options = _entry(facts, require(facts.grub, "kernel"), wanted)
        if release is None:
            return  # boot-unknown
        found = kernel_of(facts, release)
        there = facts_of(plan, node, snapshot)
        driver = found.module.version if found and found.module else there.driver
        there = replace(there, kernel=release, cmdline=options, driver=driver)
        does = "would pin" if wanted else "would boot next"
        yield from below(plan, there, table, does, "then run this again", works=False)

    return boot_known_bad


def moves_to(
    table: CompatibilityTable, drivers: Mapping[str, str | None], kernel: str | None
) -> Gate:
    """The gate about a driver that is to come, by node, with the kernel that will run below it
    (None: the one that runs now).
    """

    @per_node
    def pair_known_bad(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """A driver and a kernel on which the engine is known to fail, before either is there."""
        there = facts_of(plan, node, snapshot)
        facts = kernel_facts(snapshot)
        if kernel is not None and facts.loader == "grub":
            options = _entry(facts, require(facts.grub, "kernel"), wanted_release(kernel))[1]
            there = replace(there, kernel=kernel, cmdline=options)
        there = replace(there, driver=drivers.get(node.name) or there.driver)
        yield from below(plan, there, table, "would run", "then run this again", works=False)

    return pair_known_bad


def _entry(facts: KernelFacts, grub: Grub, wanted: Wanted | None) -> tuple[str | None, str | None]:
    """A kernel and the command line of its entry, None for what is not known."""
    release = wanted(facts) if wanted else grub.next.kernel
    paths = own_entries(grub, release) if wanted and release else [grub.next.entry]
    found = [e.options for e in grub.entries if e.path in paths and e.kernel == release]
    return release, found[0] if len(found) == 1 else None
