"""image: bring the recipe's image to every node: missing layers, over the fabric, the tag last.

Runbook: docs/runbooks/image.md. Data: from, archive, save, port, waive + reason.
"""

from deploys.plans import image
from deploys.plans.rig import loaded
from gates.transfer import image_gates
from operations import engine
from operations import image as operations_image

# Load: what we want, and from where.
rig = loaded("image", revert=image.revert)
want = image.parse_request(rig)

# Gate: one right image, a way over the fabric, room, nobody else at work.
rig.gate(image_gates(want.asked), want.plan)
work = image.plan(rig)

# Act: on one node first, where none has it; from there to all others at the same time.
operations_image.seed(
    name="Bring the image to one node",
    run=rig.run,
    reference=work.reference,
    nodes=work.seeds,
    archive=work.archive,
)
operations_image.move(
    name="Move the image",
    run=rig.run,
    reference=work.reference,
    transfer=work.transfer,
    image=work.image,
)
operations_image.keep(
    name="Keep a copy on this machine",
    run=rig.run,
    reference=work.reference,
    source=work.keeper,
    path=work.keep,
)

# Verify: the same content on every node, looked at anew.
if rig.at_head:
    engine.prove(
        name="The same content everywhere",
        run=rig.run,
        needed=work.needed,
        check=lambda: image.verify(rig),
    )
