"""fabric: what is cabled between the nodes, and how fast it is, node by node and pair by pair.

Runbook: docs/runbooks/fabric.md. Data: measure (true beside a running engine, false not at all),
port. Read-only; exit status 1 where a finding about the fabric blocks, or a rate cannot be had.
"""

from deploys.plans import fabric
from deploys.plans.rig import loaded
from gates.gate_sets import LOOKING

# Load: which nodes, which devices.
rig = loaded("fabric")

# Gate: every node answers, and nobody is at work on one.
rig.gate(LOOKING)

# Verify: what is there, what is wrong with it, and (where no engine runs) the rate of each way.
fabric.report(rig)
