"""reboot: reboot the nodes of the rig on purpose, and prove that it serves again by itself.

Runbook: docs/runbooks/reboot.md. Data: only=NODE for one node, budget=SECONDS for its next boot.
"""

from pyinfra import host

from deploys.plans import reboot, serve
from deploys.plans.rig import ALL, loaded
from operations import engine
from operations.host import reboot as reboot_node
from schema.keys import RebootData

# Load: what we want.
rig = loaded("reboot", runtimes=ALL)
serve.must_answer(rig.plan)

# Gate: the journal is clean, the next boot lands on a kernel with its driver, every unit will come
# back by itself, and a headless board will not wait for somebody's hands.
rig.gate(reboot.gates(rig), look=lambda: reboot.inspect(rig))
nodes = reboot.nodes(rig)

# Act: the engine goes down as a pair; the nodes reboot at the same time.
engine.stop(name="Stop the head", run=rig.run, nodes=rig.up.head)
engine.stop(name="Stop the workers", run=rig.run, nodes=rig.up.workers)
reboot_node(
    name="Reboot, and wait for another boot_id",
    run=rig.run,
    nodes=nodes,
    before=rig.snapshots[host.name].identity.boot_id,
    budget_s=rig.data(RebootData).budget,
)
engine.start(name="Start the engine on nodes that stayed up", run=rig.run, nodes=rig.up.all - nodes)

# Verify: nobody starts the rebooted nodes' engines; the answer proves that they come back.
if rig.at_head:
    engine.prove(
        name="A real chat completion",
        run=rig.run,
        needed=True,
        check=lambda: serve.verify(rig, patient=True),
    )
