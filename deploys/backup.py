"""backup: the engine's installation in a venv on every host, read back at the end.

Runbook: docs/runbooks/backup.md. Data: tree=FOLDER for another one than the recipe's;
list=true shows what there is; verify=ID (or all) reads back; prune=true keep=N removes the older;
to=NODE or to=FOLDER copies the newest verified one; take=ID (from=) brings one back.
"""

from pyinfra import host

from deploys.common.procedure import loaded
from deploys.procedures.transfer import copies
from deploys.procedures.venv import backup as procedure
from gates.gate_sets import CHANGING, LOOKING
from operations.transfer.copies import move
from operations.venv import backup
from schema.inputs.runbook_data import BackupData

# Load: what the rig is, and what is asked for.
rig = loaded("backup")
data = rig.data(BackupData)
is_look = bool(data.as_list or data.verify)
between = copies.asked(rig)

# Gate: every node answers; before a change also that no other change is open, and that there is a
# way from node to node where a copy goes it.
if between:
    copies.gate(rig)
else:
    rig.gate(LOOKING if is_look else CHANGING)

# Act: what was asked for, on all hosts at the same time.
if is_look:
    here = procedure.plan_look(rig, host)
    backup.verify(name="Read backups back", ids=here, made={}, pending=False)
elif data.prune:
    asked = {"keep": data.keep, "displaced": data.displaced}
    surplus = procedure.plan_prune(host, asked)
    backup.prune(name="Remove older backups", request=asked, found=surplus)
elif between:
    move(name="Bring copies from node to node", run=rig.run, moves=copies.moves(rig))
elif data.to:
    copy = procedure.plan_copy(rig, host)
    backup.copy(name="Copy it to another disk", request=copy.request, row=copy.row)
elif data.take:
    backup.take(name="Bring it back from its copy", request=procedure.plan_take(rig))
else:
    work = procedure.plan(rig, host)
    backup.back_up(
        name="Back the installation up", request=work.request, found=work.found, done=work.made
    )
    # Verify: a backup that was not read back is none.
    backup.verify(name="Read it back", ids=[], made=work.made, pending=work.found.stored)
