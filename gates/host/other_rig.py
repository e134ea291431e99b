"""The gate that a node is this rig's: another rig's rank is not stopped or overwritten by mistake.

An inventory of one node, tried on one machine of a pair, would take the pair down.
"""

from __future__ import annotations

from collections.abc import Iterator

from gates.core.check import per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from schema.render.engine_files import NODE_PATH
from schema.render.installed import membership_in


@per_node
def belongs_here(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """What is installed on the node is a rank of this rig, with no peer outside of it (fault 60).

    A new name, a node that leaves and a new fabric address look the same: `former_rig` names it.
    """
    texts = {file.path: file.content for file in require(snapshot.files, "files")}
    found = membership_in(texts.get(NODE_PATH) or "")
    if found is None or found.rig == plan.former_rig:
        return
    ours = {str(other.fabric_address) for other in plan.rig.nodes}
    strangers = [address for address in found.peers if address not in ours]
    if found.rig != plan.rig.name:
        wrong = f"belongs to rig {found.rig}, not to {plan.rig.name}"
    elif strangers:
        wrong = (
            f"belongs to rig {found.rig} with {', '.join(strangers)}, which is not in this "
            "inventory"
        )
    else:
        return
    names = ", ".join(other.name for other in plan.rig.nodes)
    yield violation(
        "other-rig",
        node.name,
        f"{node.name} {wrong}",
        evidence=f"{NODE_PATH}: rig {found.rig}, peers {', '.join(found.peers) or 'none'}; "
        f"this inventory: rig {plan.rig.name}, nodes {names}",
        remedy=f"name the inventory of rig {found.rig}; to take {node.name} out of that rig: "
        f"--data former_rig={found.rig}",
    )


GATES = (belongs_here,)
