"""tree copy and tree take: a verified backup onto another disk, and back from there.

Where copies lie and when they were last read back stands in /var/lib/rigbook/copies/ID.json.
"""

from __future__ import annotations

import os
import shlex
import time

from node.backup import compress, create, kept_files, store, verify
from node.copies import carry, place
from node.core import validate
from node.core.errors import Json, NodeError


def copy(request: Json) -> Json:
    """Copy a verified backup (the newest one without an id) to a folder on another disk, and read
    it back from there. One that lies there already is read back alone.

    Raises NodeError; what a kill or an error left is gone on with by the next call.
    """
    body = validate.keys(request, "request", ("backup", "to"), ("to",))
    to = place.parse(body["to"], "to")
    began = time.time()
    with store.Held():
        row = _verified(body.get("backup"))
        manifest = row.manifest or {}
        target = place.folder(to, row.id)
        folder = place.make(to)
        size = store.parts_bytes(manifest)
        made = not os.path.isdir(target)
        progress = compress.Progress(f"copy {row.id} to {to}", size * (2 if made else 1),
                                     store.of(row.id, store.NOTE))  # fmt: skip
        try:
            if made:
                room(folder, target, size)
                carry.whole(store.of(row.id), target, manifest, beside(folder), progress.add)
            else:
                carry.require_same(manifest, target)
                carry.check(target, manifest, progress.add)
        finally:
            progress.over()
        store.note_copy(row.id, target, time.time())
    return {"backup": row.id, "place": target, "made": made, "bytes": size,
            "took_s": round(time.time() - began, 2)}  # fmt: skip


def take(request: Json) -> Json:
    """Bring a backup that is not on this host any more back from a copy, and verify it.

    Without `from` from where this host noted a copy. Raises NodeError.
    """
    body = validate.keys(request, "request", ("backup", "from"), ("backup",))
    backup = store.checked_id(body["backup"])
    began = time.time()
    with store.Held():
        if os.path.isdir(store.of(backup)):
            raise NodeError(f"backup {backup} is on this host", "bad_request",
                            "restore it: rignode tree restore")  # fmt: skip
        source = _source(backup, body.get("from"))
        manifest = store.parse(backup, source)
        for path in manifest["files"]:
            validate.path(path, "files")
        size = store.parts_bytes(manifest)
        room(store.folder(), store.of(backup), size)
        progress = compress.Progress(f"take {backup} from {source}", size * 2)
        own = [store.of(row.id) for row in store.all_backups()]
        carry.whole(source, store.of(backup), manifest, own, progress.add)
    read = verify.verify({"backup": backup})
    return {**read, "place": source, "took_s": round(time.time() - began, 2)}


def _verified(wanted: object) -> store.Backup:
    """Gives the backup to copy: verified, with nothing known against it."""
    rows = store.all_backups()
    if wanted is not None:
        name = store.checked_id(wanted)
        store.load(name)
        rows = [row for row in rows if row.id == name]
    rows = [row for row in rows if row.manifest and row.verified and not row.problem]
    if not rows:
        raise NodeError("there is no verified backup to copy", "no_backup",
                        "make one, or verify it: rignode tree verify")  # fmt: skip
    found = rows[-1]
    kept_files.check(found.id, found.manifest or {})
    return found


def beside(folder: str) -> list[str]:
    """Gives the copies that lie in a folder."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))
            if store.ID.match(name)]  # fmt: skip


def room(folder: str, target: str, size: int) -> None:
    """Raise NodeError when the rest of a copy has no room; what a kill left counts as there."""
    partial = target + store.PARTIAL
    there = 0
    if os.path.isdir(partial):
        there = sum(entry.stat().st_size for entry in os.scandir(partial) if entry.is_file())
    create.check_room(folder, max(size - there, 0), 64)


def _source(backup: str, given: object) -> str:
    """Gives the folder of a copy. Raises NodeError when none is there, or others can write it."""
    if given is not None:
        places = [place.folder(place.parse(given, "from"), backup)]
    else:
        places = [row["place"] for row in store.copies(backup)]
    for path in places:
        if os.path.isdir(path):
            if not place.is_ours(path):
                raise NodeError(f"{path} is not root's alone", "unsafe_folder",
                                f"sudo ls -ld {shlex.quote(path)}")  # fmt: skip
            return path
    raise NodeError(f"no copy of {backup} in {', '.join(places) or 'any place that is noted'}",
                    "no_backup", "mount the disk; name the folder on it as from")  # fmt: skip
