"""verify: read-only proof that the rig serves: a real chat completion, a tool call, its metrics.

Runbook: docs/runbooks/verify.md. Data: measure; on a Kubernetes rig deadline. Exit status 1 with
the reason when it does not serve, or is slower than the recipe's baselines.
"""

from pyinfra import logger

from deploys.plans.rig import ALL, loaded, tell_away
from deploys.plans.serve import runtime_of
from deploys.plans.verify import measured

# Load: what should answer, and where.
rig = loaded("verify", runtimes=ALL)

tell_away(rig.plan)

# Verify: nothing is changed; the answer is the evidence.
if rig.at_head:
    for line in runtime_of(rig.plan).verify(rig.plan):
        logger.info(f"    {line}")
    for line in measured(rig):
        logger.info(f"    {line}")
