"""rollback: undo the last change that is not blessed, on every node that it touched.

Runbook: docs/runbooks/rollback.md. Data: change=ID for another one, overwrite='["PATH"]' for a
file that was edited since. `sudo rignode undo` does one node at its console, with no network.
"""

from pyinfra import host, state

from deploys.rolling_back import choose, undo
from deploys.support import gate, load, operator_data
from gates.serving import REACHING
from operations import change

# Load: what the rig is.
plan = load()
data = operator_data()

# Gate: every node answers, no other process holds the lock. An open change is what we are here for.
snapshots, _ = gate(plan, REACHING)
chosen = choose(plan, snapshots, data.change)

# Act and verify: one procedure over the nodes that have the change, in the rig's order.
if host.name == plan.rig.head.name:
    change.roll_back(
        name="Undo the change and bring the former engine back",
        change=chosen.id,
        plan=chosen.lines,
        work=lambda: undo(state, plan, chosen, data.overwrite),
    )
