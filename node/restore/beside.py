"""What a restore unpacked beside the tree, and proved, before the engine is stopped.

The marks of what was compared are kept as a blob of the change, so a later call, which trades the
places, need not read every byte once more.
"""

from __future__ import annotations

import json
import os
import re
import secrets

from node.backup import unpack
from node.backup.unpack import Unpacked
from node.change import work_folder_step
from node.change.transaction import Transaction
from node.change.work_folder_step import NEW, WorkFolderKind
from node.core.errors import Json
from node.core.step_state import UNDONE
from node.files import atomic


def make(steps: Transaction, manifest: Json, place: Json) -> tuple[Json, Unpacked]:
    """Unpack a backup into a work folder beside the tree, and prove it.

    Gives the folder's entry in the journal, and what lies in it. Raises NodeError, OSError.
    """
    work = work_folder_step.make(_folder(steps, place), steps)
    return work, unpack.unpack(manifest["id"], manifest, os.path.join(work["path"], NEW))


def keep(steps: Transaction, manifest: Json, work: Json, unpacked: Unpacked) -> None:
    """Note in the folder's entry that it is ready for a later call. Raises NodeError, OSError."""
    text = json.dumps({"seal": manifest["seal"], **unpacked._asdict()})
    work.update(ready=manifest["id"], proven=atomic.save_blob(text.encode()))
    steps.write()


def ready(steps: Transaction, manifest: Json) -> tuple[Json, Unpacked] | None:
    """Gives what an earlier call of this change made ready of a backup; None when there is nothing.

    It counts as this call's: an error takes it back with the rest. Raises NodeError.
    """
    for number, entry in enumerate(steps.rows):
        if entry["op"] == "work" and entry.get("ready") == manifest["id"] and _unused(entry):
            found = json.loads(atomic.load_blob(entry["proven"]))
            if found["seal"] != manifest["seal"]:
                return None
            steps.before = min(steps.before, number)
            marks = [(inode, ctime) for inode, ctime in found["marks"]]
            return entry, Unpacked(found["setuid"], marks)
    return None


def clear(steps: Transaction, but: Json | None) -> None:
    """Remove what killed calls of this change had unpacked and never used; `but` stays."""
    for entry in steps.rows:
        if entry is not but and entry["op"] == "work" and _unused(entry):
            WorkFolderKind("work").revert(entry, overwrite=False)
            steps.finish(entry, UNDONE)


def _unused(entry: Json) -> bool:
    return not entry["used"] and entry["state"] != UNDONE


def _folder(steps: Transaction, place: Json) -> str:
    """Gives a free name beside the tree for the folder in which the restore works."""
    name = re.sub(r"[^0-9A-Za-z._-]", "_", os.path.basename(place["real"]))[:60]
    folder = f"{os.path.dirname(place['real'])}/.rigbook-{name}-{steps.change['id']}"
    return folder + "-" + secrets.token_hex(2) if os.path.lexists(folder) else folder
