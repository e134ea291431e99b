"""firmware: arm Wake-on-LAN for good, check what Linux can read, list what a person must do.

Runbook: docs/runbooks/firmware.md. Data: attest=ITEM,… and by=NAME record what a person has seen;
only=NODE, nic=CARD.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import dry_run, gate, load, once, operator_data
from deploys.procedures.host.firmware import asked, decide, gates_of, observed, proof
from operations.change.apply import apply
from operations.engine import engine
from schema.inputs.runbook_data import FirmwareData

# Load: what we want, and the board's checklist.
rig = load()
data = operator_data(FirmwareData)
want = once("want", lambda: asked(rig, data))

# Gate: whether this rig may be changed now, and which card must wake it.
snapshots, waivers = gate(want.plan, gates_of(want), lambda: observed(state, want))
work = once("work", lambda: decide(state, want, snapshots, waivers, dry_run()))

# Act: what can be set, and what was attested, as one journalled change.
apply(
    name="Set what Linux can set, record what was attested",
    run=work.run,
    label="machine",
    steps=work.steps[host.name],
    members=work.members,
    idle="what can be set here is set",
    before=work.before[host.name],
)

# Verify: it is read again.
if host.name == want.plan.rig.head.name:
    engine.prove(
        name="What was set is so",
        run=work.run,
        needed=bool(work.members),
        check=lambda: proof(state, want, work),
    )
