"""Is what runs or lies on a node known to fail there: its kernel, its driver, its engine's version?

The table is catalog/compatibility.yaml. A kernel came by a routine upgrade, and at the next reboot
no rank of a pair could register memory for RDMA (MiaAI-Lab DSpark#259); of a version that fails, a
crash loop says only "NCCL error" (B1).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

from gates.artifact.build import is_there, version_of
from gates.artifact.compatibility import (
    ENGINE,
    RigFacts,
    describe,
    facts_of,
    judge,
    kernel_version,
)
from gates.artifact.modules import where
from gates.artifact.venv import own_venv
from gates.core.check import Gate, deploy_command, per_node
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.state import is_up
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.artifact import VLLM_INFO
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.recipe.compatibility import DRIVER, KERNEL, TABLE, CompatibilityTable, Entry

# Whether what a node runs has shown that it works, so that a finding about it only warns.
Works = Callable[[NodeSnapshot], bool]


def below_gate(table: CompatibilityTable, works: Works = is_up) -> Gate:
    """The gate about the kernel and the driver that run."""

    @per_node
    def below_known_bad(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """The kernel and the driver under the engine."""
        facts = facts_of(plan, node, snapshot)
        then = f"then {deploy_command(plan, 'reboot', f'only={node.name}')} -y"
        yield from below(plan, facts, table, "runs", then, works(snapshot))

    return below_known_bad


def engine_gate(table: CompatibilityTable, works: Works = is_up) -> Gate:
    """The gate about the engine's version that lies there."""

    @per_node
    def engine_known_bad(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """The version in the venv, or in the image that the recipe names."""
        if plan.runtime == "deployment" or not _is_one(plan, node, snapshot):
            return  # a chart's engine is its own business
        version = version_of(plan, node, snapshot)
        facts = facts_of(plan, node, snapshot)
        judged = judge(version, facts, table)
        if judged.verdict == "broken" and judged.entry and version:
            yield _lies_there(plan, version, facts, judged.entry, works(snapshot))
        elif judged.doubts and version is None:
            yield _not_told(plan, node, facts, judged.doubts)

    return engine_known_bad


def below(
    plan: Plan, facts: RigFacts, table: CompatibilityTable, does: str, then: str, works: bool
) -> Iterator[Violation]:
    """The findings about a node's kernel and driver: known to be broken, or not to be ruled out.

    `does`: what the node does with them; `then` follows what mends it.
    """
    versions = {KERNEL: kernel_version(facts.kernel), DRIVER: facts.driver}
    for about, version in versions.items():
        if version is None and facts.gpu == ("cpu",):
            continue
        judged = judge(version, facts, table, about)
        sure = judged.entry if judged.verdict == "broken" else None
        entries = (sure,) if sure else judged.doubts
        if not entries:
            continue
        what = f"kernel {facts.kernel}"
        if about == DRIVER:
            what = f"driver {facts.driver or 'unknown'}"
        known = "is known to fail" if sure else "may be known to fail (the host could not say)"
        yield violation(
            "kernel-known-bad" if about == KERNEL else "driver-known-bad",
            facts.node,
            f"{facts.node} {does} {what}, which {known} on this rig: {entries[0].reason}",
            evidence=f"{describe(facts)}, command line: {facts.cmdline or 'not known'}; {TABLE}: "
            + "; ".join(f"{entry.id}: {entry.text()}" for entry in entries),
            remedy=_mend(plan, facts, entries[0], about, then),
            severity="warn" if works else None,
            unknown=sure is None,
        )


def _mend(plan: Plan, facts: RigFacts, entry: Entry, about: str, then: str) -> str:
    another = (
        f"{deploy_command(plan, 'kernel', 'kernel=RELEASE', f'only={facts.node}')} -y, with one "
        "that is not known for it"
    )
    if about == DRIVER:
        return f"on {facts.node}: install a driver that {TABLE} does not call broken, {then}"
    if not entry.unless_cmdline:
        return f"{another}, {then}"
    word = entry.unless_cmdline[0]
    name = re.sub(r"[^a-z0-9]", "", word.partition("=")[0].lower())
    line = f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {word}"'
    return (
        f"on {facts.node}: echo {shlex.quote(line)} | sudo tee "
        f"/etc/default/grub.d/90-{name}.cfg && sudo update-grub, {then}; or {another}"
    )


def _is_one(plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """Whether one engine lies there; else an image or a venv has findings of its own."""
    if isinstance(snapshot.docker, Unreadable) and plan.recipe.container is not None:
        return False
    venv = own_venv(plan, node, snapshot)
    two = venv is not None and len(venv.versions.get(ENGINE, ())) != 1
    return is_there(plan, node, snapshot) and not two


def _lies_there(plan: Plan, version: str, facts: RigFacts, entry: Entry, works: bool) -> Violation:
    """The finding about a version that lies there although the table calls it broken."""
    box = plan.recipe.container
    where = f"is in the image {box.image}" if box else "is installed"
    said = "works on this rig, and is known to fail there"
    remedy = (
        f"write what you see into {TABLE}: verdict works, your name as the source, today's date"
    )
    if not works:
        said = f"{where}, and known to fail on this rig"
        back = deploy_command(plan, "rollback", "backup=last")
        remedy = f"{deploy_command(plan, 'rollback')}; where no change is open: " + (
            f"name another image in catalog/recipes/{plan.recipe.name}.yaml, container.image"
            if box
            else back
        )
    return violation(
        "version-broken",
        facts.node,
        f"{ENGINE} {version} {said}: {entry.reason}",
        evidence=f"{facts.node}: {describe(facts)}; {TABLE}, {entry.id}: {entry.text()}",
        remedy=remedy,
        severity="warn" if works else None,
    )


def _not_told(plan: Plan, node: Node, facts: RigFacts, entries: tuple[Entry, ...]) -> Violation:
    """The finding about a build that does not tell its version on a rig where some fail."""
    return violation(
        "version-unknown",
        facts.node,
        f"which {ENGINE} this build is cannot be told, and some are known to fail on this rig",
        evidence=f"{facts.node}: {describe(facts)}; {where(plan, node)}: no one folder "
        f"{VLLM_INFO.rpartition('/')[0]} with a version that tells; {TABLE}: "
        + "; ".join(f"{entry.id}: {entry.text()}" for entry in entries),
        remedy=f"{deploy_command(plan, 'provenance')} says what it holds",
        unknown=True,
    )
