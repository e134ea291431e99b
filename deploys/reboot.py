"""reboot: reboot the nodes of the rig on purpose, and prove that it serves again by itself.

Runbook: docs/runbooks/reboot.md. Data: only=NODE for one node, budget=SECONDS for its next boot.
"""

import time

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load, once, operator_data
from deploys.procedures.engine.serve import endpoint_with_key, proof
from deploys.procedures.host.firmware import load_lists
from deploys.procedures.host.kernel import driver_module
from deploys.procedures.host.reboot import decide
from facts.hardware import observe_machines
from facts.kernels import observe_kernels
from gates.firmware.checklist import rebootable
from gates.gate_sets import REBOOTING
from operations.change.run import Run
from operations.engine import engine
from operations.host.reboot import reboot
from schema.inputs.runbook_data import RebootData

# Load: what we want.
plan = load()
data = operator_data(RebootData)
where = endpoint_with_key(plan)

# Gate: the journal is clean, the next boot lands on a kernel with its driver, every unit will come
# back by itself, and a headless board will not wait for somebody's hands.
nodes = frozenset({data.only}) if data.only else None
snapshots, waivers = gate(
    plan,
    (*REBOOTING, *rebootable(once("lists", load_lists), time.time(), nodes)),
    lambda: observe_machines(
        state, plan, lambda: observe_kernels(state, plan, driver_module(plan, data))
    ),
)
work = decide(plan, snapshots, data.only, lambda: Run(state, "reboot", plan, waivers))

# Act: the engine goes down as a pair; the nodes reboot at the same time.
engine.stop(name="Stop the head", run=work.run, nodes=work.head_up)
engine.stop(name="Stop the workers", run=work.run, nodes=work.workers_up)
reboot(
    name="Reboot, and wait for another boot_id",
    run=work.run,
    nodes=work.nodes,
    before=work.boots[host.name],
    budget_s=data.budget,
)
engine.start(name="Start the engine on nodes that stayed up", run=work.run, nodes=work.to_start)

# Verify: nobody starts the rebooted nodes' engines; the answer proves that they come back.
if host.name == plan.rig.head.name:
    engine.prove(
        name="A real chat completion",
        run=work.run,
        needed=True,
        check=lambda: proof(state, plan, where, patient=True),
    )
