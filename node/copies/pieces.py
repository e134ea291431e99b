"""tree pieces, tree expect, tree arrived: a backup as it leaves the rig in pieces, and comes back.

The pieces pass through the operator's machine, which encrypts them; nothing of that is known here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import socket

from node.backup import kept_files, store, verify
from node.backup.payload_reader import forget
from node.copies import carry, copy, host_pack
from node.core import validate
from node.core.errors import Json, NodeError


def pieces(request: Json) -> Json:
    """`tree pieces`: the files of a verified backup with the sha256 of each piece of `size` bytes,
    the host's files as one tar. Raises NodeError where a file is not as the manifest says.
    """
    body = validate.keys(request, "request", ("backup", "size"), ("backup", "size"))
    backup = store.checked_id(body["backup"])
    size = int(validate.number(body["size"], "size", 1 << 16, 1 << 30))
    with store.Held(shared=True):
        row = store.inspect(backup)
        if row.manifest is None or row.problem or not row.verified:
            raise NodeError(f"backup {backup} is not verified {row.problem}".rstrip(),
                            "no_backup", "rignode tree verify")  # fmt: skip
        files = []
        for name, part in store.travelling(row.manifest).items():
            whole, hashes = _hashed(store.of(backup, name), size)
            if whole != part["sha256"]:
                raise store.damaged(backup, f"{name} is not as it was recorded")
            files.append({"name": name, "path": store.of(backup, name), "bytes": part["bytes"],
                          "pieces": hashes})  # fmt: skip
        pack = host_pack.dump(kept_files.check(backup, row.manifest))
    return {"backup": backup, "host": socket.gethostname(), "manifest": row.manifest,
            "files": files, "pack": base64.b64encode(pack).decode()}  # fmt: skip


def _hashed(path: str, size: int) -> tuple[str, list[str]]:
    """Gives a file's sha256, and that of each piece; read from the disk."""
    whole, hashes = hashlib.sha256(), []
    with open(path, "rb") as file:
        forget(file.fileno())
        left = os.fstat(file.fileno()).st_size
        while left > 0:
            piece, due = hashlib.sha256(), min(size, left)
            while due and (raw := file.read(min(due, 1 << 20))):
                piece.update(raw)
                whole.update(raw)
                due -= len(raw)
                left -= len(raw)
                verify.stop()
            hashes.append(piece.hexdigest())
            forget(file.fileno())
            if due:
                break
    return whole.hexdigest(), hashes


def expect(request: Json) -> Json:
    """`tree expect`: make room and a folder for a backup that is about to come back, by its
    manifest; gives what is there of it, from a call that was cut off. Raises NodeError.
    """
    body = validate.keys(request, "request", ("backup", "manifest"), ("backup", "manifest"))
    backup = store.checked_id(body["backup"])
    manifest = store.checked(backup, body["manifest"])
    with store.Held():
        if os.path.isdir(store.of(backup)):
            raise NodeError(f"backup {backup} is on this host", "bad_request",
                            "restore it: rignode tree restore")  # fmt: skip
        copy.room(store.folder(), store.of(backup), store.travelling_bytes(manifest))
        partial = store.of(backup) + store.PARTIAL
        store.private_folder(partial)
        have = {entry.name: entry.stat().st_size for entry in os.scandir(partial)
                if entry.is_file(follow_symlinks=False)}  # fmt: skip
    return {"folder": partial, "have": have}


def arrived(request: Json) -> Json:
    """`tree arrived`: all of it has come; read it back, and verify the backup. Raises NodeError
    (`copy_damaged`), and the file that differs is removed, so that it comes anew.
    """
    keys = ("backup", "manifest", "pack")
    body = validate.keys(request, "request", keys, keys)
    backup = store.checked_id(body["backup"])
    manifest = store.checked(backup, body["manifest"])
    try:
        pack = base64.b64decode(body["pack"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise validate.bad("pack is not base64") from None
    found = host_pack.load(pack, manifest)
    partial = store.of(backup) + store.PARTIAL
    with store.Held():
        for name, row in store.travelling(manifest).items():
            path = os.path.join(partial, name)
            if not os.path.isfile(path) or carry.sha256(path, lambda _: None) != row["sha256"]:
                if os.path.lexists(path):
                    os.unlink(path)
                raise carry.damaged(path)
            os.chmod(path, 0o600)
        carry.finish(store.of(backup), manifest, found)
    return verify.verify({"backup": backup})
