"""watch: ask the rig for a real completion, again and again, and tell somebody when none comes.

Runbook: docs/runbooks/watch.md. Data: webhook_file or webhook, interval, misses, repeat_s,
only=NODE (default: the head), url and model to ask a gateway, remove=true to end it.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load, once, operator_data
from deploys.procedures.engine.watch import decide, proof, watched
from gates.gate_sets import CHANGING
from operations.change.apply import apply
from operations.engine import engine
from schema.inputs.runbook_data import WatchData

# Load: what we want, and on which node.
rig = load()
data = operator_data(WatchData)
plan, node, documents = once("watched", lambda: watched(rig, data))

# Gate: whether this rig may be changed now.
snapshots, waivers = gate(plan, CHANGING)
work = decide(state, plan, node, documents, data, waivers)

# Act: the configuration, the service and its timer, as one journalled change.
apply(
    name="Watch the rig",
    run=work.run,
    label="watch",
    steps=work.steps if host.name == node else [],
    members=[node],
    idle="the watch is as it should be" if host.name == node else "another node watches",
)

# Verify: it has looked once, and its timer runs.
if host.name == node:
    engine.prove(
        name="The watch looks",
        run=work.run,
        needed=bool(work.steps),
        check=lambda: proof(state, work, data),
    )
