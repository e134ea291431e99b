"""verify: read-only proof that the rig serves: a real chat completion, and its metrics.

Runbook: docs/runbooks/verify.md. Exit status 1 with the reason when it does not serve.
"""

from pyinfra import host

from deploys.support import endpoint, load
from deploys.verifying import prove_it_serves

# Load: what should answer, and where.
plan = load()
where = endpoint(plan)

# Verify: nothing is changed and no host is asked; the answer is the evidence.
if host.name == plan.rig.head.name:
    prove_it_serves(where)
