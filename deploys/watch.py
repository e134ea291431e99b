"""watch: ask the rig for a real completion, again and again, and tell somebody when none comes.

Runbook: docs/runbooks/watch.md. Data: webhook_file or webhook, interval, misses,
only=NODE (default: the head), url and model to ask a gateway, restart=true and silent_s about an
engine that is silent, textfile for Prometheus, remove=true to end it.
"""

from pyinfra import host

from deploys.plans import watch
from deploys.plans.rig import ALL, loaded
from gates.gate_sets import CHANGING
from operations import engine
from operations.apply import apply

# Load: what we want, and on which node.
rig = loaded("watch", revert=watch.revert, runtimes=ALL)
want = watch.parse_request(rig)

# Gate: whether this rig may be changed now.
rig.gate(CHANGING, want.plan)
steps = watch.plan(rig, want)

# Act: the configuration, the service and its timer, as one journalled change.
apply(
    name="Watch the rig",
    run=rig.run,
    label="watch",
    steps=steps if host.name == want.node else [],
    members=[want.node],
    idle="the watch is as it should be" if host.name == want.node else "another node watches",
)

# Verify: it has looked once, and its timer runs.
if host.name == want.node:
    engine.prove(
        name="The watch looks",
        run=rig.run,
        needed=bool(steps),
        check=lambda: watch.verify(rig, want),
    )
