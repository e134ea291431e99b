"""What `tree backup` is asked for, every value checked."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from node.backup import kept_files
from node.core import validate
from node.core.errors import Json, NodeError
from node.files import atomic, state_dir

MAX_DOCUMENTS = 1 << 20
BESIDE = ("documents", "documents_sha256", "files", "dry")


def tree(value: Any, where: str = "tree") -> str:
    """Gives a tree's path. Raises NodeError for one that nobody may take for an installation."""
    path = validate.path(value, where)
    if path.count("/") < 2:
        raise validate.bad(f"{where}: {path} is a folder of the system, not an installation")
    for mine in (state_dir.root(), os.path.realpath(state_dir.root())):
        if path == mine or mine.startswith(path + "/") or path.startswith(mine + "/"):
            raise validate.bad(f"{where}: {path} and the backups' own folder hold each other")
    return path


def documents(given: Any) -> Json:
    """Gives the caller's documents, which are kept in the manifest."""
    if not isinstance(given, dict):
        raise validate.bad("documents is not an object")
    for name in given:
        validate.text(name, "documents: a name", 200)
    if len(json.dumps(given)) > MAX_DOCUMENTS:
        raise validate.bad("documents are larger than 1 MiB together")
    return given


def digest(given: Json) -> str:
    """Gives the hash of the caller's documents."""
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode("utf-8")).hexdigest()


def beside(body: Json) -> Json:
    """Gives what of a request, with the keys BESIDE, goes beside a payload.

    With `dry` the documents may be given by their hash alone: a reading command's line can be
    read by every user of the host.
    """
    given = documents(body.get("documents", {}))
    known = digest(given)
    if body.get("documents_sha256") is not None:
        known = validate.sha256(body["documents_sha256"], "documents_sha256")
    return {
        "dry": validate.boolean(body.get("dry", False), "dry"),
        "digest": known,
        "documents": given,
        "files": kept_files.collect(body.get("files", [])),
    }


def backup(request: Json) -> Json:
    """Gives a backup's request; `tree` as it was named, `real` as the folder behind its links."""
    body = validate.keys(request, "request", (*BESIDE, "tree"), ("tree",))
    path = tree(body["tree"])
    with atomic.Folder(path):
        pass  # nobody else may swap what is read here
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise NodeError(f"{path} is not there, or no folder", "no_tree",
                        "name the folder of the installation")  # fmt: skip
    tree(real)
    return {
        **beside(body),
        "tree": path,
        "real": real,
        "link": os.readlink(path) if os.path.islink(path) else None,
    }
