"""gpu_limit: compute the GPU memory limit of a Deployment, set it, and see it in the running pod.

Runbook: docs/runbooks/gpu_limit.md. Data: limit=24000m (else computed from the OOM line), wanted,
reserve_mib, device, hardware_mib, container, deadline; set='{"NAME": "value"}' for other variables,
edit='{"--slots 4": "--slots 0"}' for texts of the command line; guard=true with webhook_file or
webhook.
"""

from deploys.plans import gpu_limit, libvgpu
from deploys.plans.rig import DEPLOYMENT, gated
from gates.gate_sets import CHANGING
from operations import engine
from operations.apply import apply

# Load, Gate: the server rehearses the patch: it may change these values and nothing else.
rig = gated(
    "gpu_limit", CHANGING, revert=libvgpu.revert, more=gpu_limit.model_findings, runtimes=DEPLOYMENT
)
work = gpu_limit.plan(rig)

# Act: a strategic patch of one container, refused when somebody else wrote meanwhile.
apply(
    name="Set the variables",
    run=rig.run,
    label="kube",
    steps=work.steps,
    members=rig.nodes.head,
    idle="the Deployment has these values",
    words=work.lines,
)

# Verify: the rollout ends within its deadline, and the new pod really has the values.
engine.prove(
    name="The new pod runs with them",
    run=rig.run,
    needed=bool(work.steps),
    check=lambda: gpu_limit.verify_rollout(rig, work),
)
