"""backup: the engine's installation on every host, read back at the end.

Runbook: docs/runbooks/backup.md. Data: tree=FOLDER for another one than the recipe's venv;
list=true shows what there is; verify=ID (or all) reads back; prune=true keep=N removes the older.
"""

from pyinfra import host, state

from deploys.common.load_and_gate import gate, load, once, operator_data
from deploys.procedures.venv.backup import (
    backups_of_all,
    look,
    request,
    show,
    to_verify,
    trees,
    would_prune,
)
from facts.observe import real
from gates.gate_sets import CHANGING, REACHING
from operations.venv import backup
from schema.inputs.runbook_data import BackupData

# Load: what the rig is, and what is asked for.
plan = load()
data = operator_data(BackupData)
made = once("backups made", dict)

# Gate: every node answers; before a change also that no other change is open.
snapshots, _ = gate(plan, REACHING if data.as_list or data.verify else CHANGING)
rig = real(state)

# Act: what was asked for, on all hosts at the same time.
if data.as_list or data.verify:
    seen = once("backups", lambda: backups_of_all(rig, plan))
    wanted = "all" if data.verify is True else data.verify or None
    here = to_verify(wanted, seen, host.name)
    if data.as_list:
        show(host, seen[host.name])
    backup.verify(name="Read backups back", ids=here, made=made, pending=False)
elif data.prune:
    asked = {"keep": data.keep, "displaced": data.displaced}
    backup.prune(name="Remove older backups", request=asked, found=would_prune(rig, host, asked))
elif host.name in (named := trees(plan, data)):
    wanted = request(plan, host.name, named[host.name], snapshots[host.name])
    found = look(rig, host, wanted)
    backup.back_up(name="Back the installation up", request=wanted, found=found, done=made)
    # Verify: a backup that was not read back is none.
    backup.verify(name="Read it back", ids=[], made=made, pending=found.stored)
