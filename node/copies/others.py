"""tree copies, tree note: where copies of this host's backups lie, and the copies of other hosts'
backups that this one keeps, in /var/lib/rigbook/copies-of-others/HOSTNAME/ID.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from typing import Any

from node.backup import store
from node.copies import place
from node.core import validate
from node.core.errors import Json, NodeError
from node.files import state_dir

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def folder(*below: str) -> str:
    """Gives the folder of the copies of others, of one host's (its name), of one (its id)."""
    return os.path.join(state_dir.root(), "copies-of-others", *below)


def host_name(value: Any, where: str) -> str:
    """Gives the name of a host, which is also a folder's. Raises NodeError."""
    found = validate.text(value, where)
    if not _HOST.fullmatch(found):
        raise validate.bad(f"{where}: {found[:60]!r} is not the name of a host")
    return found


def make(host: str) -> str:
    """Make the folder of one host's copies, root-only; gives it."""
    state_dir.ensure()
    store.private_folder(folder())
    store.private_folder(folder(host))
    return folder(host)


def remove(host: str, backup: str) -> None:
    """Remove one; a kill in the midst leaves a partial one, never a hollow whole one."""
    hidden = folder(host, backup) + store.PARTIAL
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(folder(host, backup), hidden)
    state_dir.sync_folder(folder(host))
    shutil.rmtree(hidden)


def rows() -> list[Json]:
    """Gives the copies that this host keeps for others, newest first; a damaged one says why."""
    found: list[Json] = []
    for host in _listed(folder()):
        for backup in filter(store.ID.match, _listed(folder(host))):
            path = folder(host, backup)
            row: Json = {"host": host, "backup": backup, "place": path, "tree": None,
                         "bytes": 0, "problem": None}  # fmt: skip
            try:
                row.update(_about(backup, path))
            except NodeError as error:
                row["problem"] = str(error)
            found.append(row)
    return sorted(found, key=lambda row: str(row["backup"]), reverse=True)


def _about(backup: str, path: str) -> Json:
    """Gives what a copy's manifest says of it. Raises NodeError."""
    manifest = store.parse(backup, path)
    return {"tree": manifest["tree"], "bytes": store.parts_bytes(manifest),
            "created_unix_s": manifest["created_unix_s"]}  # fmt: skip


def copies(request: Json) -> Json:
    """`tree copies`: `host`, this host's name; `noted`, where copies of its own backups lie, of
    those that are gone as well; `others`, what it keeps for other hosts."""
    validate.keys(request, "request", ())
    names = (name[:-5] for name in _listed(os.path.join(state_dir.root(), "copies"))
             if name.endswith(".json") and store.ID.match(name[:-5]))  # fmt: skip
    noted = [_noted(name, row) for name in names for row in store.copies(name)]
    return {"host": socket.gethostname(), "noted": noted, "others": rows()}


def _noted(backup: str, row: Json) -> Json:
    """Gives a noted copy; with its tree and size where it lies on a disk that is mounted here."""
    found: Json = {"backup": backup, **row, "is_here": False, "tree": None, "bytes": 0}
    path = str(row["place"])
    try:
        if os.path.isabs(path) and place.is_ours(path):
            found.update(_about(backup, path), is_here=True)
    except (NodeError, OSError):
        pass  # it is elsewhere, or of no use
    return found


def note(request: Json) -> Json:
    """`tree note`: note that a copy of a backup was read back in a place and is whole, now."""
    body = validate.keys(request, "request", ("backup", "place"), ("backup", "place"))
    backup = store.checked_id(body["backup"])
    store.load(backup)
    store.note_copy(backup, validate.text(body["place"], "place", 500), time.time())
    return {"backup": backup, "copies": store.copies(backup)}


def _listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
