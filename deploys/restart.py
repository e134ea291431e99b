"""restart: the cold restart of the whole rig, in order, with a real answer at its end.

Runbook: docs/runbooks/restart.md. Killed anywhere, the next run takes the same change up again.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load
from deploys.procedures.engine.restart import decide, engine_again
from deploys.procedures.engine.serve import answerable, proof
from gates.gate_sets import RESTARTING
from operations.engine import cleanup, engine

# Load: what we want.
plan = load()
where = answerable(plan)

# Gate: what a restart cannot mend stops it before anything is touched.
snapshots, waivers = gate(plan, RESTARTING)
work = decide(state, plan, snapshots, waivers)

# Act: down as a pair, head first; what nobody owns goes; up again, worker first.
engine.stop(name="Stop the head", run=work.run, nodes=work.head_up)
engine.stop(name="Stop the workers", run=work.run, nodes=work.workers_up)
cleanup.reap(
    name="End orphans of the engine",
    run=work.run,
    request=work.reap_request,
    found=work.found[host.name],
    members=work.to_reap,
)
cleanup.clear_shm(
    name="Remove stale shared memory", run=work.run, members=work.to_clear, names=work.segments
)
cleanup.drop_caches(
    name="Drop the page cache, where memory is short",
    run=work.run,
    members=frozenset(work.needs),
    needs=work.needs,
)
engine.start(name="Start the workers", run=work.run, nodes=work.workers)
engine.start(name="Start the head", run=work.run, nodes=work.head)

# Verify: a real answer ends the change; without one it stays open for the next run.
if host.name == plan.rig.head.name:
    engine.prove(
        name="A real chat completion",
        run=work.run,
        needed=True,
        check=lambda: engine_again(proof(state, plan, where)),
    )
