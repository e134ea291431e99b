"""stop: end the engine on every node, head first, and prove that nothing of it is left.

Runbook: docs/runbooks/stop.md. The unit stays enabled: the next boot (or serve) brings it back.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load
from deploys.procedures.engine.stop import decide, nothing_left
from gates.gate_sets import CHANGING
from operations.change.run import Run
from operations.engine import engine

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
