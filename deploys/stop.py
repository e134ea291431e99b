"""stop: end the engine on every node, head first, and prove that nothing of it is left.

Runbook: docs/runbooks/stop.md. The unit stays enabled: the next boot (or serve) brings it back.
"""

from pyinfra import host, state

from deploys.stopping import decide, nothing_left
from deploys.support import gate, load
from gates.serving import CHANGING
from operations import engine
from operations.run import Run

# Load: what we want.
plan = load()

# Gate: whether this rig may be changed now.
snapshots, waivers = gate(plan, CHANGING)
work = decide(plan, snapshots)
run = work.run(lambda: Run(state, "stop", plan, waivers))

# Act: the head first, so that no client is served by half a rig.
engine.stop(name="Stop the head", run=run, nodes=work.head)
engine.stop(name="Stop the workers", run=run, nodes=work.workers)

# Verify: no process, no container, no port of the engine.
if host.name == plan.rig.head.name:
    engine.prove(
        name="Nothing of the engine is left",
        run=run,
        needed=bool(work.head or work.workers),
        check=lambda: nothing_left(state, plan, run),
    )
