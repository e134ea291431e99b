"""gpu_limit: compute the GPU memory limit of a Deployment, set it, and see it in the running pod.

Runbook: docs/runbooks/gpu_limit.md. Data: limit=24000m (else computed from the OOM line), wanted,
reserve_mib, device, hardware_mib, container, deadline; set='{"NAME": "value"}' for other variables.
"""

from pyinfra import host, state

from deploys.procedures.cluster.gpu_limit import asked_values, decide, models
from deploys.procedures.cluster.load_and_gate import gate_cluster, load_cluster
from deploys.procedures.cluster.rollout import proof
from gates.gate_sets import CHANGING
from operations.change.apply import apply
from operations.engine import engine

# Load: what we want.
plan = load_cluster()

# Gate: whether. The server rehearses the patch: it may change these values and nothing else.
snapshot, waivers = gate_cluster(plan, CHANGING, lambda: models(plan))
values = asked_values(plan, snapshot)
work = decide(state, plan, values, waivers)

# Act: a strategic patch of one container, refused when somebody else wrote meanwhile.
apply(
    name="Set the variables",
    run=work.run,
    label="kube",
    steps=work.steps,
    members=[host.name],
    idle="the Deployment has these values",
    words=work.lines,
)

# Verify: the rollout ends within its deadline, and the new pod really has the values.
engine.prove(
    name="The new pod runs with them",
    run=work.run,
    needed=bool(work.steps),
    check=lambda: proof(state, plan, work),
)
