"""unit: repoint a unit that starts a file which is not there, by a drop-in; or take one away.

Runbook: docs/runbooks/unit.md. Data: unit, exec_start, restart, restart_sec, environment,
start_limit_interval, start_limit_burst, drop_in=NAME, remove=true, only=NODE, waive + reason.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load, once, operator_data
from deploys.procedures.host.unit import asked, decide, proof
from gates.gate_sets import CHANGING
from operations.change.apply import apply
from operations.engine import engine
from schema.inputs.runbook_data import UnitData

# Load: which unit, what of it, and on which nodes.
rig = load()
data = operator_data(UnitData)
plan, wanted = once("wanted", lambda: asked(rig, data))

# Gate: whether this rig may be changed now, and whether the unit would be sound afterwards.
snapshots, waivers = gate(plan, CHANGING)
work = once("unit", lambda: decide(state, plan, snapshots, wanted, data, waivers))

# Act: the drop-in, read by systemd; a unit in trouble starts with it.
apply(
    name=work.title,
    run=work.run,
    label="drop-in",
    steps=work.steps[host.name],
    members=work.members,
    idle="the drop-in is as it should be, or the unit is not here",
    before=work.before.get(host.name),
)

# Verify: systemd has read it, and what was started stays up.
if host.name == plan.rig.head.name:
    engine.prove(
        name="The unit is what was asked for",
        run=work.run,
        needed=bool(work.members),
        check=lambda: proof(state, plan, work),
    )
