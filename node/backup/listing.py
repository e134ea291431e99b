"""tree list and tree prune: what is kept, what may go, and what may never go."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from typing import Any

from node.backup import store
from node.change import journal, tree_step
from node.core import errors, files, proc, validate
from node.core.errors import Json, NodeError, io_reason
from node.core.files import Lock


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
            if errors.interrupted():
                raise NodeError(f"ended by {errors.interrupted()}: {n} of {len(removed)} backups"
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
        gone.append({**row, "bytes": store.disk_bytes(row["path"])})
        if not dry:
            shutil.rmtree(row["path"])
    return gone, spared


# Where a copy lies: PLACE/rigbook/HOSTNAME/ID, on another disk than the backups themselves.

_BLOCK = "/sys/dev/block"


def parse_place(value: object, where: str) -> str:
    """Gives the folder of a place. Raises NodeError where it is none, or others may write above."""
    path = validate.path(value, where)
    with files.Folder(path):
        pass
    if not os.path.isdir(path) or os.path.islink(path):
        raise NodeError(f"{path} is not there, or no folder", "no_folder",
                        "mount the disk, and name the folder on it")  # fmt: skip
    return path


def place_folder(place: str, backup: str = "") -> str:
    """Gives the folder of this host's copies in a place, or that of one copy."""
    return os.path.join(place, "rigbook", socket.gethostname(), backup).rstrip("/")


def make_place(place: str) -> str:
    """Make the folder of this host's copies, root-only. Raises NodeError on the backups' own disk,
    and on a file system that keeps no owners and modes.
    """
    mine = store.folder()
    common = disks(place) & disks(mine)
    if common:
        raise NodeError(f"{place} is on the disk of the backups ({', '.join(sorted(common))})",
                        "same_disk", "a copy there dies with them: mount another disk")  # fmt: skip
    path = place_folder(place)
    for each in (os.path.dirname(path), path):
        store.private_folder(each)
    _require_owners(path)
    return path


def _require_owners(path: str) -> None:
    probe = os.path.join(path, ".probe")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        try:
            os.chown(probe, 12345, 12345)
            os.chmod(probe, 0o640)
            info = os.lstat(probe)
            kept = (info.st_uid, info.st_gid, info.st_mode & 0o7777) == (12345, 12345, 0o640)
            problem = "" if kept else "owners and modes are not kept"
        finally:
            os.unlink(probe)
    except OSError as error:
        problem = io_reason(error)
    if problem:
        raise NodeError(f"{path}: {problem}", "unfit_place",
                        "name a folder on ext4, xfs or btrfs")  # fmt: skip


def disks(path: str) -> frozenset[str]:
    """Gives the disks on which a folder lies, such as nvme0n1; where the kernel names none (a file
    system of the network, or of several layers), the mount's own source."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    source = _source(number)
    if not os.path.exists(f"{_BLOCK}/{number}") and source.startswith("/dev/"):
        real = os.stat(source).st_rdev  # btrfs has a number of its own
        number = f"{os.major(real)}:{os.minor(real)}"
    if os.path.exists(f"{_BLOCK}/{number}"):
        return frozenset(_place_whole(os.path.realpath(f"{_BLOCK}/{number}")))
    return frozenset({f"{number} {source}".strip()})


def _source(number: str) -> str:
    """Gives the source of the mount with this device number, "" for none."""
    for row in proc.read_text("/proc/self/mountinfo").splitlines():
        left, _, right = row.partition(" - ")
        if left.split()[2] == number:
            return right.split()[1]
    return ""


def _place_whole(block: str) -> set[str]:
    """Gives the disks under a block device: a partition's, and those under LVM, LUKS and RAID."""
    if os.path.exists(f"{block}/partition"):
        block = os.path.dirname(block)
    below = f"{block}/slaves"
    names = os.listdir(below) if os.path.isdir(below) else []
    found: set[str] = set()
    for name in names:
        found |= _place_whole(os.path.realpath(f"{below}/{name}"))
    backing = proc.read_text(f"{block}/loop/backing_file")
    if backing and os.path.exists(backing):
        return set(disks(backing))
    return found or {os.path.basename(block)}


def is_ours(path: str) -> bool:
    """Gives whether only root can have written a copy."""
    info = os.lstat(path)
    return info.st_uid == os.geteuid() and not info.st_mode & 0o022 and not os.path.islink(path)


# tree copies, tree note: where copies of this host's backups lie, and the copies of other hosts'
# backups that this one keeps, in /var/lib/rigbook/copies-of-others/HOSTNAME/ID.

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def others_folder(*below: str) -> str:
    """Gives the folder of the copies of others, of one host's (its name), of one (its id)."""
    return os.path.join(files.state_root(), "copies-of-others", *below)


def host_name(value: Any, where: str) -> str:
    """Gives the name of a host, which is also a folder's. Raises NodeError."""
    found = validate.text(value, where)
    if not _HOST.fullmatch(found):
        raise validate.bad(f"{where}: {found[:60]!r} is not the name of a host")
    return found


def make_others(host: str) -> str:
    """Make the folder of one host's copies, root-only; gives it."""
    files.ensure_state()
    store.private_folder(others_folder())
    store.private_folder(others_folder(host))
    return others_folder(host)


def remove_others(host: str, backup: str) -> None:
    """Remove one; a kill in the midst leaves a partial one, never a hollow whole one."""
    hidden = others_folder(host, backup) + store.PARTIAL
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(others_folder(host, backup), hidden)
    files.sync_folder(others_folder(host))
    shutil.rmtree(hidden)


def rows_of_others() -> list[Json]:
    """Gives the copies that this host keeps for others, newest first; a damaged one says why."""
    found: list[Json] = []
    for host in _listed(others_folder()):
        for backup in filter(store.ID.match, _listed(others_folder(host))):
            path = others_folder(host, backup)
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
    names = (name[:-5] for name in _listed(os.path.join(files.state_root(), "copies"))
             if name.endswith(".json") and store.ID.match(name[:-5]))  # fmt: skip
    noted = [_noted(name, row) for name in names for row in store.copies(name)]
    return {"host": socket.gethostname(), "noted": noted, "others": rows_of_others()}


def _noted(backup: str, row: Json) -> Json:
    """Gives a noted copy; with its tree and size where it lies on a disk that is mounted here."""
    found: Json = {"backup": backup, **row, "is_here": False, "tree": None, "bytes": 0}
    path = str(row["place"])
    try:
        if os.path.isabs(path) and is_ours(path):
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
