"""serve: bring the rig to its recipe and profile, and prove it with a real chat completion.

Runbook: docs/runbooks/serve.md. Data: recipe, profile, waive + reason, deep; deadline on a
Kubernetes rig, whose engine is a Deployment.
"""

from pyinfra import host

from deploys.common import known_bad
from deploys.common.load_and_gate import ALL
from deploys.common.procedure import gated
from deploys.procedures.engine import serve
from gates.gate_sets import SERVING
from operations.change.apply import apply
from operations.cluster import restart_pods
from operations.engine import engine

# Load, Gate: what we want, and whether. Nothing is changed on any host when a finding blocks.
rig = gated(
    "serve",
    (*SERVING, *known_bad.running()),
    revert=serve.revert,
    meanwhile=serve.ask_in_background,
    more=serve.findings,
    runtimes=ALL,
)
work = serve.plan(rig)

# Act: files on all nodes at once; then head down, workers down, workers up, head up.
apply(
    name="Write the launch script, the environment and the unit",
    run=rig.run,
    label="configure",
    steps=work.steps[host.name],
    members=work.to_configure,
    idle=work.idle,
    before=work.before[host.name],
    notes=work.notes.get(host.name),
)
engine.stop(name="Stop the head", run=rig.run, nodes=work.stop.head)
engine.stop(name="Stop the workers", run=rig.run, nodes=work.stop.workers)
engine.start(name="Start the workers", run=rig.run, nodes=work.start.workers)
engine.start(name="Start the head", run=rig.run, nodes=work.start.head, how=work.how)
if work.restarts:
    restart_pods.restart(
        name="Restart the pod that does not serve",
        run=rig.run,
        pods=work.restarts,
        words=work.words,
    )

# Verify: a real answer blesses the change; without one the rig goes back to the last good one.
if rig.at_head:
    engine.prove(
        name="A real chat completion",
        run=rig.run,
        needed=work.needs_proof,
        check=lambda: serve.verify(rig, work=work),
    )
