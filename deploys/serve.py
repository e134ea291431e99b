"""serve: bring the rig to its recipe and profile, and prove it with a real chat completion.

Runbook: docs/runbooks/serve.md. Data: recipe, profile, waive + reason, deep; deadline on a
Kubernetes rig, whose engine is a Deployment.
"""

from pyinfra import host

from deploys.plans import engine, serve
from deploys.plans.rig import ALL, gated
from gates.gate_sets import SERVING
from operations import cluster
from operations import engine as operations_engine
from operations.apply import apply

# Load, Gate: what we want, and whether. Nothing is changed on any host when a finding blocks.
rig = gated(
    "serve",
    (*SERVING, *engine.running()),
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
operations_engine.stop(name="Stop the head", run=rig.run, nodes=work.stop.head)
operations_engine.stop(name="Stop the workers", run=rig.run, nodes=work.stop.workers)
operations_engine.start(name="Start the workers", run=rig.run, nodes=work.start.workers)
operations_engine.start(name="Start the head", run=rig.run, nodes=work.start.head, how=work.how)
if work.restarts:
    cluster.restart_cluster(
        name="Restart the pod that does not serve",
        run=rig.run,
        pods=work.restarts,
        words=work.words,
    )

# Verify: a real answer blesses the change; without one the rig goes back to the last good one.
if rig.at_head:
    operations_engine.prove(
        name="A real chat completion",
        run=rig.run,
        needed=work.needs_proof,
        check=lambda: serve.verify(rig, work=work),
    )
