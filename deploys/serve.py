"""serve: bring the rig to its recipe and profile, and prove it with a real chat completion.

Runbook: docs/runbooks/serve.md. Data: recipe, profile, waive + reason, deep; deadline on a
Kubernetes rig, whose engine is a Deployment.
"""

from pyinfra import host, state

from deploys.common.procedure import gated
from deploys.procedures.cluster.load_and_gate import on_cluster
from deploys.procedures.cluster.serve import serve_deployment
from deploys.procedures.engine import serve
from gates.gate_sets import SERVING
from operations.engine import engine

if on_cluster():
    serve_deployment(state)
else:
    # Load, Gate: what we want, and whether. Nothing is changed on any host when a finding blocks.
    rig = gated("serve", SERVING, revert=serve.revert, meanwhile=serve.ask_in_background)
    work = serve.plan(rig)

    # Act: files on all nodes at once; then head down, workers down, workers up, head up.
    engine.configure(
        name="Write the launch script, the environment and the unit",
        run=rig.run,
        steps=work.steps[host.name],
        members=work.to_configure,
        files=work.files[host.name],
    )
    engine.stop(name="Stop the head", run=rig.run, nodes=work.stop.head)
    engine.stop(name="Stop the workers", run=rig.run, nodes=work.stop.workers)
    engine.start(name="Start the workers", run=rig.run, nodes=work.start.workers)
    engine.start(name="Start the head", run=rig.run, nodes=work.start.head)

    # Verify: a real answer blesses the change; without one the rig goes back to the last good one.
    if rig.at_head:
        engine.prove(
            name="A real chat completion",
            run=rig.run,
            needed=work.needs_proof,
            check=lambda: serve.verify(rig),
        )
