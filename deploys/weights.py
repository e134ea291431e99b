"""weights: bring the recipe's weights to every node: what lacks, over the fabric, no half file.

Runbook: docs/runbooks/weights.md. Data: from, download, verify, prune, port, waive + reason.
"""

from pyinfra import host

from deploys.plans import weights
from deploys.plans.rig import loaded
from gates.transfer import weights_gates
from operations import engine, transfer
from schema.keys import WeightsData

# Load: what we want, and whose weights are whole.
rig = loaded("weights", revert=weights.revert)
want = weights.parse_request(rig)

# Gate: one node's weights are whole, a way over the fabric, room, nobody else at work.
rig.gate(weights_gates(want.asked), want.plan)
work = weights.plan(rig)

# Act, with download=: from the hub onto one node, which gives then.
if work.download is not None:
    transfer.download(
        name="Download the weights",
        run=rig.run,
        node=work.download.node,
        request=work.download.request,
        words=work.download.words,
        then=work.then,
    )

# Act: what lacks or differs, to as many nodes at the same time as have givers; full hashes where
# asked for.
for number, transfers in enumerate(work.rounds or [[]], 1):
    many = f", round {number} of {len(work.rounds)}" if len(work.rounds) > 1 else ""
    transfer.move_weights(
        name=f"Move the weights{many}",
        run=rig.run,
        number=number,
        transfers=transfers,
        paths=work.paths,
        replaced=work.replaced,
        owner=rig.plan.rig.node(host.name).ssh_user,
        prune=rig.data(WeightsData).prune,
        then=work.then,
    )
transfer.hash_all(
    name="Hash every file",
    run=rig.run,
    members=work.hashing,
    paths=work.paths,
    found=work.hashed,
)

# Verify: the same files on every node, looked at anew.
if rig.at_head:
    engine.prove(
        name="The same weights everywhere",
        run=rig.run,
        needed=work.needed,
        check=lambda: weights.verify(rig, work),
    )
