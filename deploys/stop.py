"""stop: end the engine on every node, head first, and prove that nothing of it is left.

Runbook: docs/runbooks/stop.md. The unit stays enabled: the next boot (or serve) brings it back.
"""

from deploys.plans import stop
from deploys.plans.rig import gated
from gates.gate_sets import CHANGING
from operations import engine

# Load, Gate: what the rig is, and whether it may be changed now.
rig = gated("stop", CHANGING)
stop.refuse_survivors(rig)
segments = stop.segments(rig)

# Act: the head first, so that no client is served by half a rig.
engine.stop(name="Stop the head", run=rig.run, nodes=rig.up.head)
engine.stop(name="Stop the workers", run=rig.run, nodes=rig.up.workers)
engine.clear_shm(
    name="Remove its shared memory", run=rig.run, members=frozenset(segments), names=segments
)

# Verify: no process, no container, no port, no shared memory of the engine.
if rig.at_head:
    engine.prove(
        name="Nothing of the engine is left",
        run=rig.run,
        needed=bool(segments),
        check=lambda: stop.verify(rig),
    )
