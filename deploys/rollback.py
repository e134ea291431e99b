"""rollback: undo the last change that is not blessed, on every node that it touched.

Runbook: docs/runbooks/rollback.md. Data: change=ID for another one, overwrite='["PATH"]' for a
file that was edited since; backup=ID (or last) restores a verified backup of a venv's engine.
`sudo rignode undo` does one node at its console, with no network.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load, once, operator_data
from deploys.procedures.cluster.load_and_gate import (
    gate_cluster,
    load_cluster,
    on_cluster,
    roll_back,
)
from deploys.procedures.rollback.restore import (
    decide,
    plan_lines,
    proof,
    restored,
    returned,
    undone,
)
from deploys.procedures.rollback.rollback import choose, undo
from gates.gate_sets import REACHING
from operations.change.run import Run
from operations.engine import engine
from operations.rollback import roll_back as rollback_roll_back
from operations.rollback.revert import Recorded
from operations.venv import upgrade
from schema.inputs.runbook_data import RollbackData

# Load: what the rig is.
plan = load_cluster() if on_cluster() else load()
data = plan.data if on_cluster() else operator_data(RollbackData)
wanted_backup = None if on_cluster() else data.backup

# Gate: every node answers, no other process holds the lock. An open change is what we are here for.
if on_cluster():
    seen, _ = gate_cluster(plan, REACHING, lambda: ())
    snapshots = {plan.rig.head.name: seen}
else:
    # Asked for meanwhile: every second counts for who is down.
    if wanted_backup is None:
        recorded = once("recorded", lambda: Recorded(state, plan, data.change))
    snapshots, _ = gate(plan, REACHING)

# Act and verify: one procedure over the nodes that have the change, in the rig's order.
if wanted_backup is None:
    chosen = choose(plan, snapshots, data.change)
    if host.name == plan.rig.head.name:
        rollback_roll_back.roll_back(
            name="Undo the change and bring the former engine back",
            change=chosen.id,
            plan=chosen.lines,
            work=lambda: (
                roll_back(state, chosen.id, chosen.nodes, data.overwrite)
                if on_cluster()
                else undo(state, plan, chosen, data.overwrite, recorded)
            ),
        )
else:
    work = decide(state, plan, snapshots, wanted_backup)
    run = work.run(lambda: Run(state, "rollback", plan, (), returned))
    upgrade.task(
        name="Undo what is open",
        run=run,
        label="undo",
        plan=[f"undo {work.open.id}, without a start"] if work.open.id else [],
        work=lambda: undone(state, work),
        idle="no change is open",
    )
    stops = work.is_needed and work.runs and not work.open.id
    engine.stop(name="Stop the engine", run=run, nodes=[work.node] if stops else [])
    upgrade.task(
        name="Restore the backup",
        run=run,
        label="restore",
        plan=plan_lines(work),
        work=lambda: restored(work, run),
        idle="the tree is as the backup, and the engine runs",
    )
    starts = [work.node] if work.is_needed else []
    engine.start(name="Start the engine", run=run, nodes=starts)
    engine.prove(
        name="A real chat completion",
        run=run,
        needed=work.is_needed,
        check=lambda: proof(plan, work, run),
    )
