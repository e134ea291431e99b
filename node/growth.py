"""What is kept on a host, and the rule by which it goes."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

from node.backup import listing, store
from node.change import journal, kinds, transaction
from node.core import errors, files, proc, validate
from node.core.errors import LINK, NAME, CannotRead, Json, NodeError
from node.core.files import Lock
from node.docker import api, load
from node.engine import config

# What rigbook keeps on a host, and the rule by which each of it goes (docs/adr/0023).

# Which versions of the program must stay: what still names one, by its path.

# where units lie that the next boot, or the next start, may run
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system")
_PROGRAM = re.compile(rf"/[^\s\"'=]*/{NAME.pattern}".encode())


def _read(path: str) -> bytes:
    """Gives a file's bytes; none where it is gone, or is a link that leads nowhere."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _unit_files() -> list[str]:
    """Gives the unit files and drop-ins of this host's own."""
    found: list[str] = []
    for folder in UNIT_FOLDERS:
        found += glob.glob(f"{folder}/*.*") + glob.glob(f"{folder}/*.d/*.conf")
    return sorted(path for path in found if not os.path.isdir(path))


def _undoable(change: Json) -> bytes:
    """Gives a change's text, and the pre-images that its undo would put back.

    The program that wrote a blessed one is left out where this one knows its steps.
    """
    known = all(step["op"] in kinds.KINDS for step in change["steps"])
    shown = {**change, "program": None} if change["status"] == "COMMITTED" and known else change
    raw = json.dumps(shown).encode()
    for step in change["steps"]:
        pre = step.get("pre")
        if isinstance(pre, dict) and "sha256" in pre:
            raw += _read(os.path.join(files.blob_folder(), pre["sha256"]))
    return raw


def programs_named() -> dict[str, list[str]]:
    """Gives the path of each program that is named, with who names it: the link, unit files,
    changes that can still be undone (pre-images included), backups (by their manifests).

    Reads only. Raises NodeError for a damaged journal, OSError for what cannot be read: nothing
    may be removed then.
    """
    changes, broken = journal.read_all()
    if broken:
        raise journal.broken_error(broken)
    texts = {path: _read(path) for path in _unit_files()}
    manifests = glob.glob(f"{files.state_root()}/backups/*/manifest.json")
    texts.update({path: _read(path) for path in manifests})
    texts.update({f"change {row['id']}": _undoable(row)
                  for row in changes if row["status"] != "ROLLED_BACK"})  # fmt: skip
    if os.path.islink(LINK):
        texts[LINK] = os.readlink(LINK).encode()
    found: dict[str, list[str]] = {}
    for who, raw in texts.items():
        for program in sorted(set(_PROGRAM.findall(raw))):
            found.setdefault(program.decode(), []).append(who)
    return found


# One thing that is kept, as the rule sees it.


class Item(NamedTuple):
    """`needed` says why it must stay, "" when it may go; `over`: it goes also as one of the newest.

    The rule counts the newest of each `group` apart.
    """

    name: str
    bytes: int
    remove: Callable[[], None]
    needed: str = ""
    group: str = ""
    over: bool = False


def file_bytes(path: str) -> int:
    """Gives a file's size, 0 when it is gone."""
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


# Bundles of evidence of engines that were silent.


def bundle_items() -> list[Item]:
    """Gives the bundles, newest first."""
    return [
        Item(row.path, row.bytes, partial(files.remove_bundle, row.path)) for row in files.bundles()
    ]


# The journal's changes, and the pre-images that they name.

# above it the oldest settled changes go, though there are fewer than the rule keeps: one run of a
# patch tool may keep 256 MiB
BLOBS_MOST = 2 << 30
_DIGEST = re.compile(r"[0-9a-f]{64}")
# a pre-image's digest, and the name by which a file of several names is kept
_KEPT = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{16})\b")
UNSETTLED = ("OPEN", "INCONSISTENT")


def known_changes() -> list[Json]:
    """Gives the changes, newest first. Raises NodeError when the journal is damaged: nobody knows
    then what is needed."""
    changes, broken = journal.read_all()
    if broken:
        raise journal.broken_error(broken)
    return changes


def change_items() -> list[Item]:
    """Gives the changes, newest first."""
    lasting = {row["change"] for row in listing.displaced()}
    counted: set[str] = set()
    total = settled = 0
    found: list[Item] = []
    for change in known_changes():
        identifier = change["id"]
        named = set(_DIGEST.findall(json.dumps(change["steps"]))) - counted
        counted |= named
        total += sum(file_bytes(os.path.join(files.blob_folder(), name)) for name in named)
        needed = ""
        if change["status"] in UNSETTLED:
            needed = f"it is {change['status']}"
        elif identifier in lasting:
            needed = "what it displaced is kept"
        else:
            settled += 1
        path = journal.path_of(identifier)
        found.append(Item(identifier, file_bytes(path), partial(os.unlink, path), needed,
                          over=settled > 1 and total > BLOBS_MOST))  # fmt: skip
    return found


def blob_items() -> list[Item]:
    """Gives the kept copies, and the further names of replaced files that 0.2.0 kept.

    Those that no change and no settings file names may go.
    """
    texts = [json.dumps(change["steps"]) for change in known_changes()]
    # what the library's guard puts back is named there
    for path in glob.glob(os.path.join(os.path.dirname(config.library_path()), "*.json")):
        texts.append(proc.read_text(path))
    named = {word for text in texts for word in _KEPT.findall(text)}
    found: list[Item] = []
    for folder in (files.blob_folder(), os.path.join(files.state_root(), "linked")):
        for name in _listed(folder):
            path = os.path.join(folder, name)
            needed = "a change, or a settings file, names it" if name in named else ""
            if not name.startswith(files.TEMP_PREFIX):  # swept by whoever opens a change
                found.append(Item(name, file_bytes(path), partial(os.unlink, path), needed))
    return found


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


# Backups, the copies kept for other hosts, and the trees that restores displaced.


def displaced_items() -> list[Item]:
    """Gives the folders in which restores keep what they displaced, newest first, by tree."""
    found: list[Item] = []
    for row in listing.displaced():
        path, change = row["path"], row["change"]
        if not os.path.basename(path).startswith(".rigbook-"):
            raise NodeError(f"{path} is no folder of a restore", "internal")
        needed = f"change {change} is {row['status']}" if row["status"] in UNSETTLED else ""
        found.append(Item(path, store.disk_bytes(path), partial(shutil.rmtree, path), needed,
                          path.replace(change, "")))  # fmt: skip
    return found


def backup_items() -> list[Item]:
    """Gives the backups, newest first, by tree. Raises NodeError when the journal is damaged."""
    found: list[Item] = []
    for real, rows in listing.by_tree(None).items():
        last = listing.last_verified(rows)
        for row in rows:
            found.append(Item(row.id, listing.size(row.id), partial(store.remove, row.id),
                              listing.why_needed(row, last), real, bool(row.problem)))  # fmt: skip
    return found


def copy_items() -> list[Item]:
    """Gives the copies that are kept for other hosts, newest first, by host and tree."""
    return [Item(f"{row['host']}/{row['backup']}", row["bytes"],
                 partial(listing.remove_others, row["host"], row["backup"]),
                 "whose it is cannot be told" if row["problem"] else "",
                 f"{row['host']} {row['tree']}")
            for row in listing.rows_of_others()]  # fmt: skip


# Images that lost their tag to another one, kept under a name of ours (node/docker/load.py).

REMOVE_S = 60.0


def image_items() -> list[Item]:
    """Gives the kept images, those of the newest changes first; none without docker."""
    if not os.path.exists(api.SOCKET):
        return []
    known = [(row, json.dumps(row["steps"])) for row in known_changes()]
    found: list[tuple[int, Item]] = []
    wanted = quote(json.dumps({"reference": [load.KEPT_TAG]}))
    for row in api.get(f"/images/json?filters={wanted}"):
        tags = row.get("RepoTags") or []
        for name in (tag for tag in tags if tag.startswith(f"{load.KEPT_TAG}:")):
            naming = [n for n, (_, text) in enumerate(known) if row["Id"] in text]
            open_ = [known[n][0] for n in naming if known[n][0]["status"] in UNSETTLED]
            needed = f"change {open_[0]['id']} is {open_[0]['status']}" if open_ else ""
            size = int(row.get("Size", 0)) if len(tags) == 1 else 0
            item = Item(name, size, partial(_remove, name), needed)
            found.append((naming[0] if naming else len(known), item))
    return [item for _, item in sorted(found, key=lambda row: row[0])]


def _remove(name: str) -> None:
    """Take the name away; docker removes the image when it was the last one."""
    status, said = api.call_said("DELETE", f"/images/{quote(name, safe=':')}", REMOVE_S)
    if status not in (200, 404):
        raise NodeError(f"docker rmi {name}: {status} {said}", "image_tag")


# Versions of the program: one stays while a unit, a change, the console or a process needs it.

# an installation that was cut off; a younger one may be under way
TEMP_S = 3600.0


def folder() -> str:
    """Gives where the versions lie: beside this one."""
    return os.path.dirname(errors.own_path() or "") or errors.LIBRARY


def _running() -> set[str]:
    """Gives the programs that processes run from: they read more of them as they go on."""
    return {word for pid in proc.pids() for word in proc.argv(pid)[:8]
            if errors.NAME.fullmatch(os.path.basename(word))}  # fmt: skip


def program_items() -> list[Item]:
    """Gives the versions, newest first, and what cut-off installations left."""
    own, named, running = errors.own_path(), programs_named(), _running()
    found: list[tuple[float, Item]] = []
    for path in glob.glob(os.path.join(folder(), "rignode-*")):
        try:
            changed = os.lstat(path).st_mtime
        except FileNotFoundError:
            continue
        needed, cut = "", path.endswith(".tmp")
        if path == own:
            needed = "this one"
        elif path in named:
            needed = f"{named[path][0]} names it"
        elif path in running:
            needed = "a process runs from it"
        elif cut and time.time() - changed < TEMP_S:
            needed = "it may be written now"
        found.append((changed, Item(path, file_bytes(path), partial(os.unlink, path), needed,
                                    over=cut)))  # fmt: skip
    return [item for _, item in sorted(found, key=lambda row: row[0], reverse=True)]


# The rule: of each kind the newest stay, and what somebody needs; the rest goes after a commit.
#
# `prune` applies it when a person says so, `growth` tells what there is.


class Kept(NamedTuple):
    """A kind of what is kept: how many of the newest stay, and what there is, newest first."""

    keep: int
    look: Callable[[], list[Item]]


# in this order: a change stays while what it displaced is there, a blob while a change names it
KEPT: dict[str, Kept] = {
    "displaced": Kept(1, displaced_items),
    "changes": Kept(200, change_items),
    "blobs": Kept(0, blob_items),
    "programs": Kept(3, program_items),
    "backups": Kept(5, backup_items),
    "copies": Kept(3, copy_items),
    "images": Kept(2, image_items),
    "evidence": Kept(files.KEEP_BUNDLES, bundle_items),
}
_TOLD = ("changes", "blobs", "programs", "displaced", "backups", "copies", "images", "evidence")
# how long a close may take over it; the rest goes with the next one
MOST_S = 60.0
_ERRORS = (NodeError, CannotRead, OSError)


def _surplus(items: list[Item], keep: int) -> Iterator[Item]:
    """Gives what goes: beyond the `keep` newest of its group that may go at all. Pure."""
    seen: Counter[str] = Counter()
    for item in items:
        seen[item.group] += 1
        if not item.needed and (item.over or seen[item.group] > keep):
            yield item


def _apply(
    wanted: Collection[str], keep: int | None, dry: bool, most_s: float | None = None
) -> Json:
    """Remove what goes of these kinds; what could not be removed is told, the rest goes on.

    Raises NodeError when the journal is damaged: nobody knows then what is needed.
    """
    known_changes()
    removed: list[Json] = []
    problems: list[str] = []
    deadline = None if most_s is None else time.monotonic() + most_s
    for what in (one for one in KEPT if one in wanted):
        try:
            items = KEPT[what].look()
        except _ERRORS as error:
            problems.append(f"{what}: {kinds.reason(error)}")
            continue
        for item in _surplus(items, KEPT[what].keep if keep is None else keep):
            if errors.interrupted() or (deadline and time.monotonic() > deadline):
                problems.append(f"{what}: {item.name} and what follows goes with the next one")
                break
            try:
                if not dry:
                    item.remove()
                removed.append({"what": what, "name": item.name, "bytes": item.bytes})
            except _ERRORS as error:
                problems.append(f"{what}: {kinds.reason(error)}")
        if what == "changes" and removed and not dry:
            # once for all: their blobs must not be gone before they are
            files.sync_folder(files.journal_folder())
    return {"removed": removed, "not_freed": problems,
            "freed_bytes": sum(row["bytes"] for row in removed)}  # fmt: skip


def prune(request: Json) -> Json:
    """`prune`: apply the rule now, to one kind or all; `keep` in place of the rule's own number.

    Raises NodeError when the journal is damaged.
    """
    body = validate.keys(request, "request", ("what", "keep", "dry"))
    what = validate.choice(body.get("what"), "what", (None, *KEPT))
    keep = body.get("keep")
    keep = None if keep is None else int(validate.number(keep, "keep", 0, 10**6))
    dry = validate.boolean(body.get("dry", False), "dry")
    wanted = list(KEPT) if what is None else [what]
    with contextlib.ExitStack() as stack:
        if not dry:
            stack.enter_context(store.Held())
            stack.enter_context(Lock("prune"))
        return {**_apply(wanted, keep, dry), "dry": dry}


def close_prune(request: Json) -> Json:
    """`close`: as node.change.transaction; the rule is applied when a change becomes COMMITTED.

    What it could not free is told and is no failure of the close.
    """
    answer = transaction.close(request)
    change = answer["change"]
    if change["status"] != "COMMITTED" or not answer["changed"]:
        return answer
    wanted = set(KEPT)
    if change["deploy"] != "upgrade":
        wanted.remove("backups")  # each upgrade makes one; of the others a person made them
    if all(row["op"] != "tag" for row in change["steps"]):
        wanted.remove("images")  # docker need not be asked
    try:
        # whoever works on them now is not waited for: the next close comes
        with store.Held(wait_s=0), Lock("prune", 0):
            done = _apply(wanted, None, False, MOST_S)
    except _ERRORS as error:
        done = {"removed": [], "not_freed": [kinds.reason(error)]}
    return {**answer, "freed": _lines(done["removed"]), "not_freed": done["not_freed"]}


def _lines(removed: list[Json]) -> list[str]:
    """Gives what went, a line a kind."""
    lines: list[str] = []
    for what, kept in KEPT.items():
        sizes = [row["bytes"] for row in removed if row["what"] == what]
        if sizes:
            beyond = f"beyond the {kept.keep} newest" if kept.keep else "that nothing names"
            lines.append(f"removed {len(sizes)} {what} {beyond}, {sum(sizes) / (1 << 20):.1f} MiB")
    return lines


def growth(request: Json) -> Json:
    """`growth`: how many of each kind there are, and their bytes; reads only."""
    validate.keys(request, "request", ())
    rows: list[Json] = []
    for what in _TOLD:
        row: Json = {"what": what, "count": 0, "bytes": 0, "unreadable": None}
        try:
            items = KEPT[what].look()
            row.update(count=len(items), bytes=sum(item.bytes for item in items))
        except _ERRORS as error:
            row["unreadable"] = kinds.reason(error)
        rows.append(row)
    return {"rows": rows}
