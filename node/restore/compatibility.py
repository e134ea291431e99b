"""Whether a backup fits this host: what it was made of is still here, and is the same."""

from __future__ import annotations

import os
import re

from node.backup import contents, store
from node.core.errors import Json, NodeError

# what a person may waive by name
WAIVABLE = ("host", "path", "python", "arch", "older")


def select(wanted: str | None, tree: str | None) -> Json:
    """Gives the manifest to restore: the one named, else the newest verified one."""
    if wanted is not None:
        row = store.inspect(wanted)
        if row.manifest is None:
            store.load(wanted)  # says it in its own words
            raise store.damaged(wanted, row.problem)
        return row.manifest
    rows = [row for row in store.all_backups()
            if row.manifest and row.verified and not row.problem]  # fmt: skip
    if tree is not None:
        rows = [row for row in rows if row.manifest and tree in names(row.manifest)]
    found = sorted({row.manifest["tree"] for row in rows if row.manifest})
    if len(found) > 1:
        raise NodeError(f"there are backups of {', '.join(found)}", "bad_request",
                        "name one by its id as backup")  # fmt: skip
    if not rows or not rows[-1].manifest:
        raise NodeError(f"there is no verified backup{f' of {tree}' if tree else ''}", "no_backup",
                        "see: rignode tree list; one that is named is checked as well")  # fmt: skip
    return rows[-1].manifest


def names(manifest: Json) -> tuple[str, str]:
    """Gives the paths by which a backup's tree is known: as named, and behind its links."""
    return manifest["tree"], manifest["real"]


def _minor(path: str) -> str:
    """Gives the version in an interpreter's file name, such as 3.12, or ""."""
    found = re.search(r"python(\d+\.\d+)", os.path.basename(path))
    return found[1] if found else ""


def _interpreter(manifest: Json, here: str) -> str | None:
    """Gives what is different about the base interpreter; raises NodeError when it is gone."""
    known = manifest["facts"]["interpreter"]
    if known is None or known["inside"]:
        return None
    base = known["base"]
    if not (os.path.isfile(base) and os.access(base, os.X_OK)):
        python = f"Python {known['version'] or 'as it was'}"
        raise NodeError(f"the base interpreter {base} is gone: nothing of {here} could run",
                        "no_interpreter", f"install {python} again at {base}")  # fmt: skip
    now = os.path.realpath(base)
    if _minor(now) != _minor(known["real"]):
        return f"{base} is {now} now; it was {known['real']}"
    return None


def incompatibilities(manifest: Json, tree: str) -> list[tuple[str, str]]:
    """Gives what does not fit, as (what to waive, in words). Raises NodeError for what nobody may
    waive."""
    found: list[tuple[str, str]] = []
    was, now = manifest["facts"]["host"], contents.host()
    key = "machine_id" if was["machine_id"] and now["machine_id"] else "hostname"
    if was[key] != now[key]:
        found.append(("host", f"it is of host {was['hostname']}, this is {now['hostname']}"))
    if was["arch"] != now["arch"]:
        found.append(("arch", f"it is for {was['arch']}, this host is {now['arch']}"))
    if tree not in names(manifest):
        text = f"it is of {manifest['tree']}, not of {tree}; its scripts name the old path"
        found.append(("path", text))
    other = _interpreter(manifest, tree)
    if other:
        found.append(("python", other))
    newer = [
        row.id for row in store.all_backups()
        if row.manifest and row.verified and not row.problem
        and row.manifest["real"] == manifest["real"]
        and row.manifest["created_unix_s"] > manifest["created_unix_s"]
    ]  # fmt: skip
    if newer:
        found.append(("older", f"{newer[-1]} is a newer verified backup of it"))
    return found


def require_compatible(manifest: Json, tree: str, allow: list[str]) -> list[str]:
    """Raise NodeError for the misfits that are not allowed; gives those that are, in words."""
    found = incompatibilities(manifest, tree)
    bad = [(what, text) for what, text in found if what not in allow]
    if bad:
        raise NodeError(
            f"backup {manifest['id']} does not fit: {'; '.join(text for _, text in bad)}",
            "backup_misfit",
            "take another one, or allow it by name: " + ", ".join(what for what, _ in bad),
        )
    return [text for _, text in found]
