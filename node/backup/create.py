"""tree backup: an installation's own files, whole or not at all."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable

from node.backup import compress, contents, kept_files, store
from node.backup import request as backup_request
from node.backup import walk as backup_walk
from node.backup.tar_reader import Reader, Safety
from node.core import signals
from node.core.errors import Json, NodeError
from node.files import state_dir

# beside what is needed: the file system's own, and other programs that write meanwhile
MARGIN_SHARE, MARGIN_BYTES = 0.02, 256 << 10
# longer than the clock of a file's times stands still
TICK_S = 0.02


def backup(request: Json) -> Json:
    """Back a tree up; gives its id, or the id of a verified backup that holds it already.

    Raises NodeError when there is no room, when the tree changes meanwhile, and when tar fails;
    nothing is left of the backup then.
    """
    wanted = backup_request.backup(request)
    compress.programs()
    if wanted["dry"]:
        return _dry(wanted)
    with store.Held():
        store.sweep()
        began = time.time()
        listing = backup_walk.walk(wanted["real"])
        facts = contents.collect(wanted["real"])
        digest = listing.sha256()
        twin = find_twin(wanted, digest)
        if twin and twin.manifest and is_same(twin.manifest, wanted, facts):
            detail = f"{twin.id} is verified and holds the same files; nothing was stored"
            return answer(twin.manifest, False, detail, began)
        check_room(store.folder(), 0 if twin else listing.apparent, 16)
        # whatever is edited from here on has later times than any that were read
        time.sleep(TICK_S)
        backup_id = store.new_id(wanted["tree"])

        def make(partial: str) -> Json:
            made = _make(backup_id, partial, wanted, listing, twin)
            return {**made, "facts": facts, "tree_sha256": digest, "seconds": time.time() - began}

        manifest = whole(backup_id, make)
    detail = f"the files are those of {twin.id}, which shares them" if twin else "stored"
    return answer(manifest, True, detail, began)


def whole(backup_id: str, make: Callable[[str], Json]) -> Json:
    """Have a backup's folder filled, which has its name once it is whole; gives its manifest.

    `make` fills the folder that it gets and gives the manifest. Nothing is left on an error.
    """
    partial = store.of(backup_id) + store.PARTIAL
    os.mkdir(partial, 0o700)
    try:
        manifest = make(partial)
        store.save_manifest(os.path.join(partial, store.MANIFEST), manifest)
        state_dir.sync_folder(partial)
        os.rename(partial, store.of(backup_id))
        state_dir.sync_folder(store.folder())
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def _dry(wanted: Json) -> Json:
    """Gives whether a backup would store something; reads only."""
    listing = backup_walk.walk(wanted["real"])
    facts = contents.collect(wanted["real"])
    twin = find_twin(wanted, listing.sha256())
    known = bool(twin and twin.manifest and is_same(twin.manifest, wanted, facts))
    return {"backup": twin.id if twin and known else None, "stored": not known,
            "tree": wanted["tree"], "members": len(listing.lines),
            "apparent_bytes": listing.apparent, "shares": twin.id if twin else None,
            "versions": facts["versions"]}  # fmt: skip


def _make(
    backup_id: str,
    partial: str,
    wanted: Json,
    listing: backup_walk.Listing,
    twin: store.Backup | None,
) -> Json:
    """Write the payload and the members; gives the manifest, not yet written."""
    if twin and twin.manifest:
        parts = linked(twin.id, twin.manifest, partial)
    else:
        parts = _pack(partial, wanted, listing)
    _require_unedited(wanted, listing)
    return {
        "id": backup_id,
        **kept(partial, wanted),
        **parts,
        **backup_walk.as_json(listing),
    }


def kept(partial: str, wanted: Json) -> Json:
    """Write what goes beside a payload; gives the manifest's words for what is backed up."""
    return {
        "created_unix_s": time.time(),
        "tree": wanted["tree"],
        "real": wanted["real"],
        "link": wanted["link"],
        "documents": {"given": wanted["documents"]},
        "files": kept_files.write(os.path.join(partial, store.FILES), wanted["files"]),
    }


def linked(backup: str, manifest: Json, partial: str) -> Json:
    """Link another backup's payload and lists into a folder; gives its manifest's words for it."""
    for name in store.parts(manifest):
        os.link(store.of(backup, name), os.path.join(partial, name))
    return {key: manifest[key] for key in ("format", "payload", "members")}


def _pack(partial: str, wanted: Json, listing: backup_walk.Listing) -> Json:
    """Write the payload, and the list of its members with the hash of each file's bytes."""
    reader = Reader(listing.members(), Safety())
    note = os.path.join(partial, store.NOTE)
    progress = compress.Progress(f"backup of {wanted['tree']}", listing.apparent, note)
    target = os.path.join(partial, store.PAYLOAD)
    try:
        payload = compress.pack(wanted["real"], list(listing.stamps), target, progress,
                                reader.feed, stop)  # fmt: skip
        reader.finish()
    except NodeError as error:
        if error.code == "backup_damaged":  # tar met another file than the one that was listed
            _require_unedited(wanted, listing)
        raise
    progress.over()
    lines = listing.hashed(reader.hashes)
    members = compress.write_lines(os.path.join(partial, store.MEMBERS), lines)
    return {"format": store.FORMAT, "payload": payload, "members": members}


def _require_unedited(wanted: Json, listing: backup_walk.Listing) -> None:
    """Raise NodeError (`tree_changing`) when the tree is not what was listed any more."""
    edited = backup_walk.edited_since(listing)
    if edited:
        raise NodeError(f"{wanted['real']} changed while it was read: {edited}",
                        "tree_changing", "stop what changes it, then run it again")  # fmt: skip


def stop() -> None:
    """Raise NodeError when a signal asked to end."""
    number = signals.interrupted()
    if number:
        raise NodeError(f"ended by {number}; nothing of the backup is left", "interrupted",
                        "run it again")  # fmt: skip


def check_room(folder: str, need: int, entries: int) -> None:
    """Raise NodeError (`no_room`) when a folder's file system lacks bytes or entries."""
    seen = os.statvfs(folder)
    need += int(need * MARGIN_SHARE) + MARGIN_BYTES
    free = seen.f_bavail * seen.f_frsize
    if free < need:
        raise NodeError(
            f"no room in {folder}: {free / 2**20:.1f} MiB are free, {need / 2**20:.1f} MiB are"
            " needed at most", "no_room", "make room, or: rignode tree prune '{\"keep\": 2}'",
        )  # fmt: skip
    if seen.f_files and seen.f_favail < entries:
        raise NodeError(f"no room in {folder}: {seen.f_favail} inodes are free, {entries} are"
                        " needed", "no_room", "make room there")  # fmt: skip


def find_twin(wanted: Json, digest: str) -> store.Backup | None:
    """Gives the newest verified backup of the very same files, or None."""
    for row in reversed(store.all_backups()):
        if not row.manifest or not row.verified or row.problem:
            continue
        if (row.manifest["real"], row.manifest["tree_sha256"]) == (wanted["real"], digest):
            return row
    return None


def is_same(manifest: Json, wanted: Json, facts: Json) -> bool:
    """Gives True when all that stands beside the files is the same, too (but the boot)."""
    # 0.2.0 kept more
    old, new = {key: manifest["facts"].get(key) for key in facts}, dict(facts)
    for row in (old, new):
        row["host"] = {key: value for key, value in row["host"].items() if key != "boot_id"}
    given = backup_request.digest(manifest["documents"]["given"])
    mine = (wanted["tree"], wanted["link"], wanted["digest"], kept_files.rows(wanted["files"]), new)
    return mine == (manifest["tree"], manifest["link"], given, manifest["files"], old)


def answer(manifest: Json, stored: bool, detail: str, began: float) -> Json:
    """Gives what became of a backup."""
    return {
        "backup": manifest["id"],
        "stored": stored,
        "detail": detail,
        "tree": manifest["tree"],
        "members": manifest["members"]["count"],
        "apparent_bytes": manifest["apparent_bytes"],
        "bytes": manifest["payload"]["bytes"],
        "sha256": manifest["payload"]["sha256"],
        "versions": manifest["facts"]["versions"],
        "setuid": manifest["setuid"],
        "took_s": round(time.time() - began, 2),
    }
