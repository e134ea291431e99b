"""restart: the cold restart of the whole rig, in order, with a real answer at its end.

Runbook: docs/runbooks/restart.md. Killed anywhere, the next run takes the same change up again.
"""

from pyinfra import host

from deploys.plans import restart, serve
from deploys.plans.rig import gated
from gates.gate_sets import RESTARTING
from operations import engine

# Load, Gate: what a restart cannot mend stops it before anything is touched.
rig = gated("restart", RESTARTING, meanwhile=serve.must_answer)
work = restart.plan(rig)

# Act: down as a pair, head first; what nobody owns goes; up again, worker first.
engine.stop(name="Stop the head", run=rig.run, nodes=rig.up.head)
engine.stop(name="Stop the workers", run=rig.run, nodes=rig.up.workers)
engine.reap(
    name="End orphans of the engine",
    run=rig.run,
    request=work.reap_request,
    found=work.found[host.name],
    members=work.to_reap,
)
engine.clear_shm(
    name="Remove stale shared memory", run=rig.run, members=work.to_clear, names=work.segments
)
engine.drop_caches(
    name="Drop the page cache, where memory is short",
    run=rig.run,
    members=frozenset(work.needs),
    needs=work.needs,
)
engine.start(name="Start the workers", run=rig.run, nodes=rig.nodes.workers)
engine.start(name="Start the head", run=rig.run, nodes=rig.nodes.head)

# Verify: a real answer ends the change; without one it stays open for the next run.
if rig.at_head:
    engine.prove(
        name="A real chat completion",
        run=rig.run,
        needed=True,
        check=lambda: f"cold restart: {serve.verify(rig)}",
    )
