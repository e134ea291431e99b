"""tree verify: read a backup back from the disk, every byte of it, against its manifest."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from node.backup import compress, kept_files, store
from node.backup.payload_reader import PayloadReader, forget
from node.backup.tar_reader import Reader, Safety, refused
from node.backup.walk import member
from node.core import signals, validate
from node.core.errors import Json, NodeError


def stop() -> None:
    """Raise NodeError when a signal asked to end."""
    number = signals.interrupted()
    if number:
        raise NodeError(f"ended by {number}", "interrupted", "run it again")


def _members(backup: str, known: Json) -> str:
    """Gives the path of the list of members, which is as it was recorded."""
    path = store.of(backup, store.MEMBERS)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        forget(file.fileno())
        for piece in iter(lambda: file.read(compress.CHUNK), b""):
            digest.update(piece)
    if digest.hexdigest() != known["sha256"]:
        raise store.damaged(backup, "its list of members was edited")
    return path


def read(
    backup: str, manifest: Json, what: str, sink: Callable[[bytes], object] | None = None
) -> list[str]:
    """Read a payload from the disk to its end; `sink` gets each piece of its tar after it was
    looked at, the last one after all of it was. Gives the members with setuid, setgid or
    capabilities.

    Raises NodeError (`backup_damaged`) for anything that is not as the manifest says, every file's
    bytes among it, and for what no payload may hold.
    """
    give = sink or (lambda piece: None)
    safety = Safety()
    last = b""
    payload, members = manifest["payload"], manifest["members"]
    note = store.of(backup, store.NOTE)
    progress = compress.Progress(what, payload["bytes"], note)
    with open(_members(backup, members), "rb") as lines:
        reader = Reader(map(member, lines), safety)
        source = PayloadReader(store.of(backup, store.PAYLOAD), progress)
        try:
            while True:
                piece = source.read()
                if not piece:
                    break
                reader.feed(piece)
                if last:
                    give(last)
                last = piece
                stop()
            digest, code = source.finish(), source.code()
        finally:
            said = source.close()
            progress.over()
        if digest != payload["sha256"]:
            raise refused("its sha256 is another one: the bytes were changed")
        if code != 0:
            raise refused(f"zstd ended with {code}: {said or 'no word'}")
        reader.finish()
    if reader.count != members["count"]:
        raise refused(f"{reader.count} members, not {members['count']}")
    give(last)
    return safety.setuid


def verify(request: Json) -> Json:
    """Verify a backup, the newest when none is named; the outcome is noted beside it.

    Raises NodeError (`backup_damaged`) with what is wrong.
    """
    body = validate.keys(request, "request", ("backup",))
    compress.programs()
    began = time.time()
    with store.Held(shared=True):
        backup = newest() if body.get("backup") is None else store.checked_id(body["backup"])
        manifest = store.load(backup)
        try:
            size = store.inspect(backup)
            if size.manifest is None:
                raise store.damaged(backup, size.problem)
            kept_files.check(backup, manifest)
            _read(backup, manifest)
        except NodeError as error:
            if error.code == "backup_damaged":
                store.mark(backup, manifest, str(error))
            raise
        store.mark(backup, manifest, "")
    return {
        "backup": backup,
        "tree": manifest["tree"],
        "members": manifest["members"]["count"],
        "bytes": manifest["payload"]["bytes"],
        "sha256": manifest["payload"]["sha256"],
        "versions": manifest["facts"]["versions"],
        "setuid": manifest["setuid"],
        "took_s": round(time.time() - began, 2),
    }


def _read(backup: str, manifest: Json) -> None:
    """Read a payload back; one that is damaged is noted with every backup that has it."""
    try:
        read(backup, manifest, f"verify {backup}")
    except NodeError as error:
        if error.code == "backup_damaged":
            for row in store.sharing(manifest["payload"]["sha256"]):
                store.mark(row.id, row.manifest or {}, str(error))
        raise


def newest() -> str:
    """Gives the id of the newest backup. Raises NodeError when there is none."""
    found = store.all_backups()
    if not found:
        raise NodeError("there is no backup on this host", "no_backup",
                        "make one: rignode tree backup '{\"tree\": \"/PATH\"}'")  # fmt: skip
    return found[-1].id
