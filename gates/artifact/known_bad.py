"""Is what runs or lies on a node known to fail there: its kernel, its driver, its engine's version?

The table is catalog/compatibility.yaml. A kernel came by a routine upgrade, and at the next reboot
no rank of a pair could register memory for RDMA (MiaAI-Lab DSpark#259); of a version that fails, a
crash loop says only "NCCL error" (B1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gates.artifact.compatibility import (
    ENGINE,
    RigFacts,
    describe,
    facts_of,
    judge,
    kernel_version,
)
from gates.artifact.image import image_name, image_of
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
_VERSION = re.compile(r"/vllm-([^/]+)\.dist-info/")


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
        there, version = engine_version(plan, node, snapshot)
        if not there:
            return
        facts = facts_of(plan, node, snapshot)
        judged = judge(version, facts, table)
        if judged.verdict == "broken" and judged.entry and version:
            yield _lies_there(plan, version, facts, judged.entry, works(snapshot))
        elif judged.doubts and version is None:
            yield _not_told(plan, facts, judged.doubts)

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
        f"on {facts.node}: echo '{line}' | sudo tee /etc/default/grub.d/90-{name}.cfg && "
        f"sudo update-grub, {then}; or {another}"
    )


def engine_version(plan: Plan, node: Node, snapshot: NodeSnapshot) -> tuple[bool, str | None]:
    """Whether there is an engine to ask about, and its version, None where that cannot be told.

    An image's is read from its files: the folder of pip's metadata names it. Labels do not, they
    are the base's; tags do not either, `nightly` moves.
    """
    if plan.recipe.container is None:
        venv = own_venv(plan, node, snapshot)
        found = venv.versions.get(ENGINE, ()) if venv else ()
        # two of one, or none, are findings of the venv's own gates
        return (len(found) == 1, found[0] if len(found) == 1 else None)
    reference = image_name(plan) or ""
    docker = snapshot.docker
    if isinstance(docker, Unreadable) or image_of(docker, reference) is None:
        return False, None  # docker-unreadable, image-missing
    if isinstance(snapshot.image_files, Unreadable):
        return True, None
    paths = {
        match.path
        for answer in snapshot.image_files
        if answer.image == reference and answer.path.endswith(f"/{VLLM_INFO}")
        for match in answer.matches
    }
    names = {found[1] for path in paths if (found := _VERSION.search(path))}
    return True, names.pop() if len(names) == 1 else None


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


def _not_told(plan: Plan, facts: RigFacts, entries: tuple[Entry, ...]) -> Violation:
    """The finding about an image that does not tell its version on a rig where some fail."""
    return violation(
        "version-unknown",
        facts.node,
        f"which {ENGINE} the image holds cannot be told, and some are known to fail on this rig",
        evidence=f"{facts.node}: {describe(facts)}; {image_name(plan)}: no one folder "
        f"{VLLM_INFO.rpartition('/')[0]} that can be read; {TABLE}: "
        + "; ".join(f"{entry.id}: {entry.text()}" for entry in entries),
        remedy=f"{deploy_command(plan, 'provenance')} says what the image holds",
        unknown=True,
    )
