"""restore: a verified backup of a venv back in its place, and proven by a real chat completion.

Runbook: docs/runbooks/restore.md. Data: backup=ID (or last, which is the default).
"""

from deploys.common.procedure import gated
from deploys.procedures.rollback import restore
from gates.gate_sets import RESTORING
from operations.engine import engine
from operations.rollback.restore import restore as bring_back
from operations.rollback.restore import undo_open
from schema.inputs.runbook_data import OfABackupData

# Load, Gate: every node answers, no other process holds the lock.
rig = gated("restore", RESTORING, revert=restore.revert)
work = restore.plan(rig, rig.data(OfABackupData).backup or restore.LAST)

# Act: what is open goes first; the backup is unpacked beside and trades places.
undo_open(name="Undo what is open", run=rig.run, node=work.node, change=work.open.id)
engine.stop(name="Stop the engine", run=rig.run, nodes=work.stops)
bring_back(
    name="Restore the backup",
    run=rig.run,
    node=work.node,
    backup=work.row.id,
    venv=work.venv,
    package=work.package,
    force=work.force,
    words=restore.words(work),
)
engine.start(name="Start the engine", run=rig.run, nodes=work.starts)

# Verify: its program is executed, and the engine answers.
engine.prove(
    name="A real chat completion",
    run=rig.run,
    needed=work.is_needed,
    check=lambda: restore.verify(rig, work),
)
