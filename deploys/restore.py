"""restore: a verified backup of a venv back in its place, and proven by a real chat completion.

Runbook: docs/runbooks/restore.md. Data: backup=ID (or last, which is the default); one that is
gone from its node is brought back first from its copy, on a disk there or with another node.
"""

from deploys.plans import restore
from deploys.plans.rig import gated
from gates.gate_sets import RESTORING
from operations import engine, rollback
from schema.keys import OfABackupData

# Load: what the rig is. Gate: every node answers, no other process holds the lock.
rig = gated("restore", RESTORING, revert=restore.revert)

# Decide: which backup, and what it changes.
work = restore.plan(rig, rig.data(OfABackupData).backup or restore.LAST)

# Act: a backup that is gone from the node comes back.
restore.bring_back(rig, work.back)

# Act: what is open goes first; the backup is unpacked beside, and trades places once proven.
rollback.undo_open(name="Undo what is open", run=rig.run, node=work.node, change=work.open.id)
rollback.unpack(
    name="Unpack the backup",
    run=rig.run,
    node=work.node,
    backup=work.row.id,
    force=work.force,
    line=restore.unpacking(work),
)
engine.stop(name="Stop the engine", run=rig.run, nodes=work.stops)
rollback.restore(
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
