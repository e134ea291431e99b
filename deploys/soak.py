"""soak: hours of mixed load on the engine that serves, and whether memory leaks meanwhile.

Runbook: docs/runbooks/soak.md. Data: streams, seconds. Exit status 1 when memory leaks, or an
answer failed.
"""

from pyinfra import logger

from deploys.plans.rig import gated
from deploys.plans.soak import soaked
from gates.gate_sets import MEASURING

# Load and gate: what is to be loaded, and whether it is this rig.
rig = gated("soak", MEASURING)

# Verify: nothing is changed; what the nodes say meanwhile is the evidence.
if rig.at_head:
    for line in soaked(rig):
        logger.info(f"    {line}")
