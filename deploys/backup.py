"""backup: the engine's installation on every host, read back at the end.

Runbook: docs/runbooks/backup.md. Data: tree=FOLDER for another one than the recipe's venv;
list=true shows what there is; verify=ID (or all) reads back; prune=true keep=N removes the older;
to=FOLDER copies the newest verified one to another disk; take=ID (from=FOLDER) brings one back.
"""

from pyinfra import host

from deploys.common.procedure import loaded
from deploys.procedures.venv import backup as procedure
from gates.gate_sets import CHANGING, LOOKING
from operations.venv import backup
from schema.inputs.runbook_data import BackupData

# Load: what the rig is, and what is asked for.
rig = loaded("backup")
data = rig.data(BackupData)
is_look = bool(data.as_list or data.verify)

# Gate: every node answers; before a change also that no other change is open.
rig.gate(LOOKING if is_look else CHANGING)

# Act: what was asked for, on all hosts at the same time.
if is_look:
    here = procedure.plan_look(rig, host)
    backup.verify(name="Read backups back", ids=here, made={}, pending=False)
elif data.prune:
    asked = {"keep": data.keep, "displaced": data.displaced}
    surplus = procedure.plan_prune(host, asked)
    backup.prune(name="Remove older backups", request=asked, found=surplus)
elif data.to:
    copy = procedure.plan_copy(rig, host)
    backup.copy(name="Copy it to another disk", request=copy.request, row=copy.row)
elif data.take:
    backup.take(name="Bring it back from its copy", request=procedure.plan_take(rig, host))
elif host.name in procedure.trees(rig):
    work = procedure.plan(rig, host)
    backup.back_up(
        name="Back the installation up", request=work.request, found=work.found, done=work.made
    )
    # Verify: a backup that was not read back is none.
    backup.verify(name="Read it back", ids=[], made=work.made, pending=work.found.stored)
