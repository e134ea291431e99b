"""weights: bring the recipe's weights to every node: what lacks, over the fabric, no half file.

Runbook: docs/runbooks/weights.md. Data: from, verify, prune, port, waive + reason.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load, operator_data
from deploys.procedures.transfer.image import asking_the_way
from deploys.procedures.transfer.weights import agreed, decide, giver
from gates.transfer.weights import weights_gates
from operations.engine import engine
from operations.transfer import weights
from schema.inputs.runbook_data import WeightsData

# Load: what we want.
data = operator_data(WeightsData)
plan = asking_the_way(load(), data)

# Gate: one node's weights are whole, a way over the fabric, room, nobody else at work.
snapshots, waivers = gate(
    plan,
    weights_gates(
        giver(state, plan, data), data.port, data.waive, data.source is not None or data.prune
    ),
)
work = decide(state, plan, snapshots, waivers, data)

# Act: what lacks or differs, to all takers at the same time; full hashes where asked for.
weights.move(
    name="Move the weights",
    run=work.run,
    transfer=work.transfer,
    paths=work.paths,
    owner=plan.rig.node(host.name).ssh_user,
    prune=data.prune,
)
weights.hash_all(
    name="Hash every file",
    run=work.run,
    members=work.hashing,
    paths=work.paths,
    found=work.hashed,
)

# Verify: the same files on every node, looked at anew.
if host.name == plan.rig.head.name:
    engine.prove(
        name="The same weights everywhere",
        run=work.run,
        needed=work.needed,
        check=lambda: agreed(state, plan, work),
    )
