"""serve: bring the rig to its recipe and profile, and prove it with a real chat completion.

Runbook: docs/runbooks/serve.md. Data: recipe, profile, waive + reason, deep; deadline on a
Kubernetes rig, whose engine is a Deployment.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load
from deploys.procedures.cluster.load_and_gate import on_cluster
from deploys.procedures.cluster.serve import serve_deployment
from deploys.procedures.engine.serve import answerable, asked, back_again, decide, proof
from gates.gate_sets import SERVING
from operations.change.run import Run
from operations.engine import engine

if on_cluster():
    serve_deployment(state)
else:
    # Load: what we want.
    plan = load()

    where = answerable(plan)
    asked(plan)

    # Gate: whether. Nothing has been changed on any host when a finding blocks.
    snapshots, waivers = gate(plan, SERVING)
    work = decide(state, plan, snapshots)
    run = work.run(lambda: Run(state, "serve", plan, waivers, back_again))

    # Act: files on all nodes at once; then head down, workers down, workers up, head up.
    engine.configure(
        name="Write the launch script, the environment and the unit",
        run=run,
        steps=work.steps[host.name],
        members=work.to_configure,
        files=work.files[host.name],
    )
    engine.stop(name="Stop the head", run=run, nodes=work.stop_head)
    engine.stop(name="Stop the workers", run=run, nodes=work.stop_workers)
    engine.start(name="Start the workers", run=run, nodes=work.start_workers)
    engine.start(name="Start the head", run=run, nodes=work.start_head)

    # Verify: a real answer blesses the change; without one the rig goes back to the last good one.
    if host.name == plan.rig.head.name:
        engine.prove(
            name="A real chat completion",
            run=run,
            needed=work.needs_proof,
            check=lambda: proof(state, plan, where),
        )
