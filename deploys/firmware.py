"""firmware: arm Wake-on-LAN for good, check what Linux can read, list what a person must do.

Runbook: docs/runbooks/firmware.md. Data: attest=ITEM,… and by=NAME record what a person has seen;
only=NODE, nic=CARD.
"""

from pyinfra import host

from deploys.plans import firmware
from deploys.plans.rig import loaded
from operations import engine
from operations.apply import apply

# Load: what we want, and the board's checklist.
rig = loaded("firmware", revert=firmware.revert)
want = firmware.parse_request(rig)

# Gate: whether this rig may be changed now, and which card must wake it.
rig.gate(firmware.gates(want), look=lambda: firmware.inspect(want))
work = firmware.plan(rig, want)

# Act: what can be set, and what was attested, as one journalled change.
apply(
    name="Set what Linux can set, record what was attested",
    run=rig.run,
    label="machine",
    steps=work.steps[host.name],
    members=work.members,
    idle="what can be set here is set",
    before=work.before[host.name],
)

# Verify: it is read again.
if rig.at_head:
    engine.prove(
        name="What was set is so",
        run=rig.run,
        needed=bool(work.members),
        check=lambda: firmware.verify(want, work),
    )
