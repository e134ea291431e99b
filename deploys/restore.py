"""restore: a verified backup back in its place, a venv or an image, and proven by a real chat
completion.

Runbook: docs/runbooks/restore.md. Data: backup=ID (or last, which is the default); one that is
gone from its node is brought back first from its copy, on a disk there or with another node.
"""

from deploys.common.procedure import loaded
from deploys.procedures.rollback import restore, restore_image
from deploys.procedures.transfer import gone
from gates.gate_sets import CHANGING, RESTORING
from operations.engine import engine
from operations.rollback import restore as bring_back
from schema.inputs.runbook_data import OfABackupData

# Load: what the rig is, and which backup.
rig = loaded("restore", revert=restore.revert)
backup = rig.data(OfABackupData).backup or restore.LAST
is_image = rig.plan.recipe.container is not None

# Gate: every node answers, no other process holds the lock; an image waits for an open change.
rig.gate(CHANGING if is_image else RESTORING)

if is_image:
    box = restore_image.plan(rig, backup)

    # Act: what is gone from a node comes back; then the rig stops as one, and each node gets the
    # image, its unit and its launch files.
    gone.bring(rig, box.back)
    engine.stop(name="Stop the head", run=rig.run, nodes=box.stops.head)
    engine.stop(name="Stop the workers", run=rig.run, nodes=box.stops.workers)
    bring_back.restore_image(
        name="Restore the backup",
        run=rig.run,
        rows=box.rows,
        words=box.words,
        unasked=box.back.copies,
    )
    engine.start(name="Start the workers", run=rig.run, nodes=box.starts.workers)
    engine.start(name="Start the head", run=rig.run, nodes=box.starts.head)

    # Verify: the engine answers.
    if rig.at_head:
        engine.prove(
            name="A real chat completion",
            run=rig.run,
            needed=box.is_needed,
            check=lambda: restore_image.verify(rig, box),
        )
else:
    work = restore.plan(rig, backup)

    # Act: a backup that is gone from the node comes back.
    gone.bring(rig, work.back)

    # Act: what is open goes first; the backup is unpacked beside, and trades places once proven.
    bring_back.undo_open(name="Undo what is open", run=rig.run, node=work.node, change=work.open.id)
    bring_back.unpack(
        name="Unpack the backup",
        run=rig.run,
        node=work.node,
        backup=work.row.id,
        force=work.force,
        line=restore.unpacking(work),
    )
    engine.stop(name="Stop the engine", run=rig.run, nodes=work.stops)
    bring_back.restore(
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
