"""image: bring the recipe's image to every node: missing layers, over the fabric, the tag last.

Runbook: docs/runbooks/image.md. Data: from, archive, build, method, port, waive + reason.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load, operator_data
from deploys.procedures.transfer.image import agreed, asking_the_way, decide, image_of_recipe
from gates.transfer.image import image_gates
from operations.engine import engine
from operations.transfer import image
from schema.inputs.runbook_data import ImageData

# Load: what we want.
data = operator_data(ImageData)
plan = asking_the_way(load(), data)

# Gate: one right image, a way over the fabric, room, nobody else at work.
image_of_recipe(plan)
said_which = data.build or data.archive is not None
snapshots, waivers = gate(
    plan,
    image_gates(data.source, data.port, said_which, data.method == "ssh", data.waive),
)
work = decide(state, plan, snapshots, waivers, data)

# Act: on one node first, where none has it; from there to all others at the same time.
image.seed(
    name="Bring the image to one node",
    run=work.run,
    reference=image_of_recipe(plan),
    nodes=work.seeds,
    archive=work.archive,
    build=work.build,
)
image.move(
    name="Move the image",
    run=work.run,
    reference=image_of_recipe(plan),
    transfer=work.transfer,
    whole=work.whole,
    image=work.image,
)

# Verify: the same content on every node, looked at anew.
if host.name == plan.rig.head.name:
    engine.prove(
        name="The same content everywhere",
        run=work.run,
        needed=work.needed,
        check=lambda: agreed(state, plan),
    )
