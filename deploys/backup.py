"""backup: the engine's installation in a venv on every host, read back at the end.

Runbook: docs/runbooks/backup.md. Data: tree=FOLDER for another one than the recipe's;
list=true shows what there is; verify=ID (or all) reads back; prune=true keep=N removes the older;
to=NODE or to=FOLDER copies the newest verified one; take=ID (from=) brings one back.
"""

from pyinfra import host

from deploys.plans import backup
from deploys.plans.rig import loaded
from gates.gate_sets import CHANGING, LOOKING
from operations import venv
from operations.transfer import move_copies
from schema.keys import BackupData

# Load: what the rig is, and what is asked for.
rig = loaded("backup")
data = rig.data(BackupData)
is_look = bool(data.as_list or data.verify)
between = backup.copies_asked(rig)

# Gate: every node answers; before a change also that no other change is open, and that there is a
# way from node to node where a copy goes it.
if between:
    backup.gate_copies(rig)
else:
    rig.gate(LOOKING if is_look else CHANGING)

# Act: what was asked for, on all hosts at the same time.
if is_look:
    here = backup.plan_look(rig, host)
    venv.verify_backup(name="Read backups back", ids=here, made={}, pending=False)
elif data.prune:
    asked = {"keep": data.keep, "displaced": data.displaced}
    surplus = backup.plan_prune(host, asked)
    venv.prune_backups(name="Remove older backups", request=asked, found=surplus)
elif between:
    move_copies(name="Bring copies from node to node", run=rig.run, moves=backup.moves(rig))
elif data.to:
    copy = backup.plan_copy(rig, host)
    venv.copy_backup(name="Copy it to another disk", request=copy.request, row=copy.row)
elif data.take:
    venv.take_backup(name="Bring it back from its copy", request=backup.plan_take(rig))
else:
    work = backup.plan(rig, host)
    venv.back_up(
        name="Back the installation up", request=work.request, found=work.found, done=work.made
    )
    # Verify: a backup that was not read back is none.
    venv.verify_backup(name="Read it back", ids=[], made=work.made, pending=work.found.stored)
