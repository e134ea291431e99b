"""unit: repoint a unit that starts a file which is not there, by a drop-in; or take one away.

Runbook: docs/runbooks/unit.md. Data: unit, exec_start, restart, restart_sec, environment,
drop_in=NAME, remove=true, only=NODE, waive + reason.
"""

from pyinfra import host

from deploys.plans import unit
from deploys.plans.rig import loaded
from gates.gate_sets import CHANGING
from operations import engine
from operations.apply import apply

# Load: which unit, what of it, and on which nodes.
rig = loaded("unit", revert=unit.revert)
plan, wanted = unit.parse_request(rig)

# Gate: whether this rig may be changed now, and whether the unit would be sound afterwards.
rig.gate(CHANGING, plan)
work = unit.plan(rig, wanted)

# Act: the drop-in, read by systemd; a unit in trouble starts with it.
apply(
    name=work.title,
    run=rig.run,
    label="drop-in",
    steps=work.steps[host.name],
    members=work.members,
    idle="the drop-in is as it should be, or the unit is not here",
    before=work.before.get(host.name),
)

# Verify: systemd has read it, and what was started stays up.
if rig.at_head:
    engine.prove(
        name="The unit is what was asked for",
        run=rig.run,
        needed=bool(work.members),
        check=lambda: unit.verify(rig, work),
    )
