"""measure keep: the documents of measurements on the host, the newest of them."""

from __future__ import annotations

import contextlib
import json
import os
import re

from node.core import validate
from node.core.errors import Json
from node.files import atomic, state_dir

# A document has 10 to 300 kB: 15 MB at most.
KEEP = 50
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-(bench|soak)-[0-9a-f]{4}\Z")


def folder() -> str:
    """Gives the folder of the documents, root's alone."""
    return os.path.join(state_dir.root(), "measurements")


def kept() -> list[str]:
    """Gives the ids, newest first: they begin with the time."""
    try:
        names = os.listdir(folder())
    except FileNotFoundError:
        return []
    ids = [name[: -len(".json")] for name in names if name.endswith(".json")]
    return sorted(filter(_NAME.match, ids), reverse=True)


def keep(request: Json) -> Json:
    """`measure keep`: writes `document` as `id`, and removes those beyond the newest KEEP."""
    body = validate.keys(request, "request", ("id", "document"), ("id", "document"))
    name = validate.text(body["id"], "id")
    if not _NAME.match(name):
        raise validate.bad(f"id is {name[:40]!r}, no measurement's")
    raw = json.dumps(body["document"], sort_keys=True).encode("utf-8") + b"\n"
    state_dir.ensure()
    os.makedirs(folder(), mode=0o700, exist_ok=True)
    path = os.path.join(folder(), f"{name}.json")
    atomic.save_private(path, raw)
    for old in kept()[KEEP:]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder(), f"{old}.json"))
    return {"path": path, "changed": True}
