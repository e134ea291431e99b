"""verify: read-only proof that the rig serves: a real chat completion, and its metrics.

Runbook: docs/runbooks/verify.md. Data: deadline (on a Kubernetes rig). Exit status 1 with the
reason when it does not serve.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import endpoint, load
from deploys.procedures.cluster.completion import prove_it_answers
from deploys.procedures.cluster.load_and_gate import load_cluster, on_cluster
from deploys.procedures.engine.verify import prove_it_serves

# Load: what should answer, and where.
plan = load_cluster() if on_cluster() else load()

# Verify: nothing is changed; the answer is the evidence. A Service is asked from its host.
if on_cluster():
    prove_it_answers(state, plan)
elif host.name == plan.rig.head.name:
    prove_it_serves(endpoint(plan))
