"""The doctor's look at a version that lies there already: is it known to fail on this rig?

After an upgrade nobody asks the gate of the upgrade any more, and a crash loop says only "NCCL
error" (B1).
"""

from __future__ import annotations

from gates.artifact.compatibility import ENGINE, describe, facts_of, judge
from gates.artifact.venv import own_venv
from gates.core.check import Observed, answering_nodes, deploy_command
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from schema.recipe.compatibility import TABLE, CompatibilityTable, Entry


def installed(
    plan: Plan, observed: Observed, table: CompatibilityTable, answers: bool
) -> list[Violation]:
    """The findings about the versions that lie in the venvs now: only those known to be broken.

    `answers`: the engine gave a real completion. Then the table is what is wrong, and it warns.
    """
    found: list[Violation] = []
    for node, snapshot in answering_nodes(plan, observed):
        venv = own_venv(plan, node, snapshot)
        there = venv.versions.get(ENGINE, ()) if venv else ()
        if len(there) != 1:
            continue  # two of one, or none, are findings of the venv's own gates
        judged = judge(there[0], facts_of(plan, node, snapshot), table)
        if judged.verdict == "broken" and judged.entry:
            found.append(_lies_there(plan, there[0], node, snapshot, judged.entry, answers))
    return found


def _lies_there(
    plan: Plan, version: str, node: Node, snapshot: NodeSnapshot, entry: Entry, answers: bool
) -> Violation:
    """The finding about a version that is installed although the table calls it broken."""
    facts = facts_of(plan, node, snapshot)
    said = "answers on this rig, and is known to fail there"
    remedy = (
        f"write what you see into {TABLE}: verdict works, your name as the source, today's date"
    )
    if not answers:
        said = "is installed, and known to fail on this rig"
        back = deploy_command(plan, "rollback", "backup=last")
        remedy = f"{deploy_command(plan, 'rollback')}; where no change is open: {back}"
    return violation(
        "version-broken",
        node.name,
        f"{ENGINE} {version} {said}: {entry.reason}",
        evidence=f"{node.name}: {describe(facts)}; {TABLE}, {entry.id}: {entry.text()}",
        remedy=remedy,
        severity="warn" if answers else None,
    )
