"""rollback: undo the last change that is not blessed, on every node that it touched.

Runbook: docs/runbooks/rollback.md. Data: change=ID for another one, overwrite=PATH,… for
files that were edited since, despite=ID for another change that is open; backup=ID (or last) does
what deploys/restore.py does.
`sudo rignode undo` does one node at its console, with no network.
"""

from pyinfra import local

from deploys.plans import rollback
from deploys.plans.rig import ALL, gated, loaded
from gates.gate_sets import REACHING
from operations.rollback import undo
from schema.keys import RollbackData

# Load: what the rig is, and what is asked for.
rig = loaded("rollback", runtimes=ALL)
data = rig.data(RollbackData)

if data.backup is not None:
    local.include("deploys/restore.py")
else:
    # Gate: every node answers and is this rig's. An open change is what we are here for.
    rig = gated("rollback", REACHING, runtimes=ALL)
    chosen = rollback.choose(rig, data.change, data.despite)

    # Act, Verify: over the nodes that have the change, in the rig's order; the engine answers.
    if rig.at_head:
        undo(
            name="Undo the change and bring the former engine back",
            plan=rig.plan,
            change=chosen.id,
            nodes=chosen.nodes,
            words=chosen.lines,
            runs=chosen.runs,
            forced=data.change is not None,
            overwrite=data.overwrite,
            despite=data.despite,
        )
