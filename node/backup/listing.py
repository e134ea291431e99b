"""tree list and tree prune: what is kept, what may go, and what may never go."""

from __future__ import annotations

import os
import shutil
import time

from node.backup import store, walk
from node.change import journal, tree_step
from node.core import proc, signals, validate
from node.core.errors import Json, NodeError
from node.files.host_lock import Lock


def list_all(request: Json) -> Json:
    """Gives the backups, newest first, what is partial, how far work on them is, and what
    restores displaced."""
    validate.keys(request, "request", ())
    backups = [describe(row) for row in reversed(store.all_backups())]
    partial: list[str] = []
    working: list[str] = []
    if os.path.isdir(store.folder()):
        names = sorted(os.listdir(store.folder()))
        partial = [name for name in names if name.endswith(store.PARTIAL)]
        if store.busy():
            notes = [proc.read_text(store.of(name, store.NOTE)) for name in names]
            working = [text for text in notes if text]
    return {"backups": backups, "partial": partial, "working": working, "displaced": displaced()}


def describe(row: store.Backup) -> Json:
    """Gives one backup as the list shows it."""
    manifest = row.manifest
    found: Json = {"id": row.id, "usable": manifest is not None and not row.problem,
                   "problem": row.problem or None,
                   "verified_unix_s": row.verified or None}  # fmt: skip
    if manifest is None:
        return found
    facts = manifest["facts"]
    return {
        **found,
        "tree": manifest["tree"],
        "real": manifest["real"],
        "created_unix_s": manifest["created_unix_s"],
        "age_s": round(time.time() - manifest["created_unix_s"]),
        "bytes": manifest["payload"]["bytes"],
        "apparent_bytes": manifest["apparent_bytes"],
        "members": manifest["members"]["count"],
        "versions": facts["versions"],
        "python": (facts["interpreter"] or {}).get("version"),
        "host": facts["host"]["hostname"],
        "copies": store.copies(row.id),
    }


def displaced() -> list[Json]:
    """Gives the folders in which restores keep what they displaced: path, change, its status."""
    rows: list[Json] = []
    for one in journal.read_all()[0]:
        for entry in one["steps"]:
            if entry["op"] != "work":
                continue
            if tree_step.inspect_tree(entry["path"])["kind"] == "directory":
                rows.append({"path": entry["path"], "change": one["id"],
                             "status": one["status"]})  # fmt: skip
    return rows


def prune(request: Json) -> Json:
    """Remove backups beyond the `keep` newest of each tree; with `displaced` also what restores
    of ended changes had displaced.

    Kept whatever `keep` says: a tree's last verified backup, and what a change that is not
    settled names. Raises NodeError when the journal is damaged: nobody knows then what is needed.
    """
    body = validate.keys(request, "request", ("keep", "tree", "displaced", "dry"))
    keep = int(validate.number(body.get("keep", 3), "keep", 1, 1000))
    tree = None if body.get("tree") is None else validate.path(body["tree"], "tree")
    dry = validate.boolean(body.get("dry", False), "dry")
    with_displaced = validate.boolean(body.get("displaced", False), "displaced")
    if dry:  # reads only
        return _prune(tree, keep, with_displaced, True)
    with store.Held(), Lock("tree prune"):
        return _prune(tree, keep, with_displaced, False)


def _prune(tree: object, keep: int, with_displaced: bool, dry: bool) -> Json:
    """Sort the backups, and remove those that go unless it is a dry run."""
    swept = [] if dry else store.sweep()
    removed: list[Json] = []
    kept: list[Json] = []
    for rows in by_tree(tree).values():
        _partition(rows, keep, removed, kept)
    if not dry:
        for n, row in enumerate(removed):
            if signals.interrupted():
                raise NodeError(f"ended by {signals.interrupted()}: {n} of {len(removed)} backups"
                                " are removed", "interrupted", "run it again")  # fmt: skip
            store.remove(row["id"])
    gone, spared = _prune_displaced(dry) if with_displaced else ([], [])
    freed = sum(row["bytes"] for row in (*removed, *gone))
    return {"removed": removed, "kept": kept, "swept": swept, "displaced_removed": gone,
            "displaced_kept": spared, "freed_bytes": freed, "dry": dry}  # fmt: skip


def by_tree(tree: object) -> dict[str, list[store.Backup]]:
    """Gives the backups of each tree, newest first; those that cannot be read stand apart."""
    found: dict[str, list[store.Backup]] = {}
    for row in reversed(store.all_backups()):
        if row.manifest is None:
            if tree is None:
                found.setdefault("", []).append(row)
        elif tree is None or tree in (row.manifest["tree"], row.manifest["real"]):
            found.setdefault(row.manifest["real"], []).append(row)
    return found


def _partition(rows: list[store.Backup], keep: int, removed: list[Json], kept: list[Json]) -> None:
    """Sort one tree's backups into those that go and those that stay, each with the reason."""
    newest = {row.id for row in _whole(rows)[:keep]}
    last = last_verified(rows)
    for row in rows:
        why = why_needed(row, last)
        if not why and row.id in newest:
            why = f"one of the {keep} newest"
        if not why:
            removed.append({"id": row.id, "bytes": size(row.id),
                            "why": row.problem or f"older than the {keep} newest"})  # fmt: skip
            continue
        kept.append({"id": row.id, "bytes": size(row.id), "why": why})


def _whole(rows: list[store.Backup]) -> list[store.Backup]:
    """Gives those that can be used."""
    return [row for row in rows if row.manifest is not None and not row.problem]


def last_verified(rows: list[store.Backup]) -> str | None:
    """Gives the newest verified one of a tree's backups, newest first."""
    return next((row.id for row in _whole(rows) if row.verified), None)


def why_needed(row: store.Backup, last: str | None) -> str:
    """Gives why a backup stays however old it is, "" when it may go."""
    needed = store.needed_by(row.id)
    if needed:
        return f"change {needed[0]} is not settled and names it"
    if row.id == last:
        return "the last verified one of its tree"
    if row.manifest is None:
        return f"{row.problem}; whose it is cannot be told: remove it by hand"
    return "none of its tree is verified" if last is None else ""


def size(backup: str) -> int:
    """Gives the bytes that removing a backup would free; a payload that is shared frees none."""
    total = 0
    for entry in os.scandir(store.of(backup)):
        info = entry.stat(follow_symlinks=False)
        total += info.st_size if entry.is_file() and info.st_nlink == 1 else 0
    return total


def _prune_displaced(dry: bool) -> tuple[list[Json], list[Json]]:
    """Remove the work folders of ended changes; gives those that went and those that stayed."""
    if journal.read_all()[1]:
        raise journal.broken_error(journal.read_all()[1])
    gone: list[Json] = []
    spared: list[Json] = []
    for row in displaced():
        if row["status"] not in ("COMMITTED", "ROLLED_BACK"):
            spared.append({**row, "why": "its change is not settled"})
            continue
        if not os.path.basename(row["path"]).startswith(".rigbook-"):
            raise NodeError(f"{row['path']} is no folder of a restore", "internal")
        gone.append({**row, "bytes": walk.disk_bytes(row["path"])})
        if not dry:
            shutil.rmtree(row["path"])
    return gone, spared
