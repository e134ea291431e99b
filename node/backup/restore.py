"""tree restore: unpack beside, prove it, then trade places; a journalled change.

tree unpack: the first half alone, while the engine runs; tree restore then only trades.
"""

from __future__ import annotations

import base64
import contextlib
import grp
import json
import os
import pwd
import re
import secrets
import shlex
import time

from node.backup import create, payload, store, verify
from node.backup.verify import Unpacked
from node.change import journal, kinds, transaction, tree_step
from node.change.journal import UNDONE
from node.change.kinds import Seen, Steps
from node.change.transaction import Transaction
from node.change.tree_step import NEW, TreeKind, WorkFolderKind
from node.change.unit_step import HOLD_FILE
from node.core import dirfd, files, validate
from node.core.errors import Json, NodeError
from node.core.systemctl import systemctl
from node.engine import start
from node.units import FOLDER_SUFFIX

# The host's own files that a backup recorded beside its tree: the unit, its drop-ins, its launch.
#
# A restore brings them back with the tree: an old engine under a unit and flags of a newer one
# does
# not start. Each is a journalled step, so undo gives back what lay there.

Found = create.Found


def differing_host_files(found: Found) -> list[Json]:
    """Gives the steps that bring the recorded files back; none when they are as recorded.

    A drop-in of a recorded unit that was not there at the time goes.
    """
    steps: list[Json] = []
    for path, kept in sorted(found.items()):
        if kept is None:
            continue
        now = create.read_kept(path)
        if now and now.row() == kept.row():
            continue
        folder = os.path.dirname(path)
        if not os.path.isdir(folder) and os.path.isdir(os.path.dirname(folder)):
            row: Json = {"op": "directory", "path": folder, "mode": "0755"}
            steps += [] if row in steps else [row]
        content = base64.b64encode(kept.raw).decode("ascii")
        steps.append({"op": "file", "path": path, "mode": f"{kept.mode:04o}",
                      "content_base64": content, **_owner(kept)})  # fmt: skip
    return steps + [{"op": "absent", "path": path} for path in _added(found)]


def _owner(kept: create.Kept) -> Json:
    """Gives the names of a file's owners; one whom this host does not know leaves it to root."""
    named: Json = {}
    with contextlib.suppress(KeyError):
        named["owner"] = pwd.getpwuid(kept.uid).pw_name
        named["group"] = grp.getgrgid(kept.gid).gr_name
    return named


def _added(known: Found) -> list[str]:
    """Gives the drop-ins of a recorded unit that came after the backup."""
    found: list[str] = []
    for path in sorted(known):
        folder = path + FOLDER_SUFFIX
        if not path.endswith(".service") or not os.path.isdir(folder):
            continue
        for name in sorted(os.listdir(folder)):
            each = os.path.join(folder, name)
            if name.endswith(".conf") and name != HOLD_FILE and each not in known:
                found.append(each)
    return found


def host_file_words(rows: list[Json]) -> list[str]:
    """Gives a line for each step that changes a file."""
    verbs = {"file": "write", "absent": "remove"}
    return [f"{verbs[row['op']]} {row['path']}" for row in rows if row["op"] in verbs]


def bring_back(rows: list[Json], steps: Steps) -> None:
    """Do the steps, journalled; systemd is told of them. Raises NodeError, OSError."""
    wanted = [kinds.parse(row, f"files[{n}]") for n, row in enumerate(rows)]
    seen = Seen()
    for step in wanted:
        kinds.of(step).plan(step, seen)
    for step in wanted:
        kinds.of(step).do(step, steps)
    if any(row["path"].startswith(transaction.SYSTEMD) for row in rows):
        systemctl("daemon-reload")


# What a restore unpacked beside the tree, and proved, before the engine is stopped.
#
# The marks of what was compared are kept as a blob of the change, so a later call, which trades
# the
# places, need not read every byte once more.


def make_beside(steps: Transaction, manifest: Json, place: Json) -> tuple[Json, Unpacked]:
    """Unpack a backup into a work folder beside the tree, and prove it.

    Gives the folder's entry in the journal, and what lies in it. Raises NodeError, OSError.
    """
    work = tree_step.make_work_folder_step(_folder(steps, place), steps)
    return work, verify.unpack(manifest["id"], manifest, os.path.join(work["path"], NEW))


def keep_beside(steps: Transaction, manifest: Json, work: Json, unpacked: Unpacked) -> None:
    """Note in the folder's entry that it is ready for a later call. Raises NodeError, OSError."""
    text = json.dumps({"seal": manifest["seal"], **unpacked._asdict()})
    work.update(ready=manifest["id"], proven=files.save_blob(text.encode()))
    steps.write()


def ready_beside(steps: Transaction, manifest: Json) -> tuple[Json, Unpacked] | None:
    """Gives what an earlier call of this change made ready of a backup; None when there is nothing.

    It counts as this call's: an error takes it back with the rest. Raises NodeError.
    """
    for number, entry in enumerate(steps.rows):
        if entry["op"] == "work" and entry.get("ready") == manifest["id"] and _unused(entry):
            found = json.loads(files.load_blob(entry["proven"]))
            if found["seal"] != manifest["seal"]:
                return None
            steps.before = min(steps.before, number)
            marks = [(inode, ctime) for inode, ctime in found["marks"]]
            return entry, Unpacked(found["setuid"], marks)
    return None


def clear_beside(steps: Transaction, but: Json | None) -> None:
    """Remove what killed calls of this change had unpacked and never used; `but` stays."""
    for entry in steps.rows:
        if entry is not but and entry["op"] == "work" and _unused(entry):
            WorkFolderKind("work").revert(entry, overwrite=False)
            steps.finish(entry, UNDONE)


def _unused(entry: Json) -> bool:
    return not entry["used"] and entry["state"] != UNDONE


def _folder(steps: Transaction, place: Json) -> str:
    """Gives a free name beside the tree for the folder in which the restore works."""
    name = re.sub(r"[^0-9A-Za-z._-]", "_", os.path.basename(place["real"]))[:60]
    folder = f"{os.path.dirname(place['real'])}/.rigbook-{name}-{steps.change['id']}"
    return folder + "-" + secrets.token_hex(2) if os.path.lexists(folder) else folder


# Whether a backup fits this host: what it was made of is still here, and is the same.

# what a person may waive by name
WAIVABLE = ("host", "path", "python", "arch", "older")


def select_facts(wanted: str | None, tree: str | None) -> Json:
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
        rows = [row for row in rows if row.manifest and tree in compatibility_names(row.manifest)]
    found = sorted({row.manifest["tree"] for row in rows if row.manifest})
    if len(found) > 1:
        raise NodeError(f"there are backups of {', '.join(found)}", "bad_request",
                        "name one by its id as backup")  # fmt: skip
    if not rows or not rows[-1].manifest:
        raise NodeError(f"there is no verified backup{f' of {tree}' if tree else ''}", "no_backup",
                        "see: rignode tree list; one that is named is checked as well")  # fmt: skip
    return rows[-1].manifest


def compatibility_names(manifest: Json) -> tuple[str, str]:
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
    was, now = manifest["facts"]["host"], create.host_facts()
    key = "machine_id" if was["machine_id"] and now["machine_id"] else "hostname"
    if was[key] != now[key]:
        found.append(("host", f"it is of host {was['hostname']}, this is {now['hostname']}"))
    if was["arch"] != now["arch"]:
        found.append(("arch", f"it is for {was['arch']}, this host is {now['arch']}"))
    if tree not in compatibility_names(manifest):
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


def _parse_request(request: Json) -> Json:
    """Gives the request with every value checked; at the console a change is made up."""
    allowed = ("change", "backup", "tree", "allow", "force", "dry")
    body = validate.keys(request, "request", allowed)
    rows = validate.array(body.get("allow", []), "allow", 10)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    own = {"id": f"{stamp}-restore-{secrets.token_hex(2)}", "deploy": "tree restore",
           "operator": "console"}  # fmt: skip
    backup, tree = body.get("backup"), body.get("tree")
    return {
        "change": journal.parse_change(body.get("change") or own),
        "backup": None if backup is None else store.checked_id(backup),
        "tree": None if tree is None else create.parse_tree(tree),
        "allow": [validate.choice(row, "allow", WAIVABLE) for row in rows],
        "force": validate.boolean(body.get("force", False), "force"),
        "dry": validate.boolean(body.get("dry", False), "dry"),
    }


def restore(request: Json) -> Json:
    """Bring a backup's files back to their path, and the unit, its drop-ins and launch files as
    they were recorded; the change stays OPEN for the caller to end.

    Nothing changes when the tree is as the backup already, to the byte (`force` unpacks it without
    a comparison). What was unpacked is proven before it is used, and looked at again once it is in
    place. On any error the tree is as it was.
    """
    wanted = _parse_request(request)
    payload.compressors()
    with store.Held(shared=True):
        manifest = select_facts(wanted["backup"], wanted["tree"])
        place = _place(manifest, wanted["tree"])
        waived = require_compatible(manifest, place["tree"], wanted["allow"])
        if wanted["dry"]:
            return _plan(manifest, place, waived)
        with transaction.opened(wanted["change"], "tree restore") as steps:
            found = ready_beside(steps, manifest)
            clear_beside(steps, found[0] if found else None)
            place["files"] = _files(manifest, place)
            unpacks = bool(found or wanted["force"] or _different(manifest, place))
            if not unpacks and not place["files"]:
                return _nothing(steps, manifest, place)
            if unpacks and not found:
                _room(manifest, place)
            engine = start.engine_if_stopped()
            with start.unit_held(steps, engine):
                cleared = start.end_leftovers(engine) if engine else []
                answer = _restore(steps, manifest, place, waived, unpacks, found)
            return {**answer, "cleared": cleared}


def unpack(request: Json) -> Json:
    """Unpack a backup beside its tree and prove it; the engine may run meanwhile.

    The change stays OPEN: `restore` with it trades the places, an undo removes what was unpacked.
    Nothing is unpacked where that was done in this change, or the tree is as the backup already
    (`force` leaves that comparison out). On any error nothing is left.
    """
    wanted = _parse_request(request)
    payload.compressors()
    with store.Held(shared=True):
        manifest = select_facts(wanted["backup"], wanted["tree"])
        place = _place(manifest, wanted["tree"])
        require_compatible(manifest, place["tree"], wanted["allow"])
        with transaction.opened(wanted["change"], "tree unpack") as steps:
            found = ready_beside(steps, manifest)
            clear_beside(steps, found[0] if found else None)
            began = time.time()
            if not found and (wanted["force"] or _different(manifest, place)):
                _room(manifest, place)
                try:
                    keep_beside(steps, manifest, *make_beside(steps, manifest, place))
                except (NodeError, OSError) as error:
                    raise steps.take_back(error) from error
                return {**_about(manifest, place), **steps.answer(), "changed": True,
                        "took_s": round(time.time() - began, 2)}  # fmt: skip
            return {**_about(manifest, place), **steps.answer(), "changed": False,
                    "took_s": 0.0}  # fmt: skip


def _place(manifest: Json, tree: str | None) -> Json:
    """Gives where it goes: the folder itself, and the link to it when there was one."""
    if tree is None or tree in compatibility_names(manifest):
        place = {"tree": manifest["tree"], "real": manifest["real"], "link": manifest["link"]}
    else:
        place = {"tree": tree, "real": os.path.realpath(tree), "link": None}
    if not os.path.isdir(os.path.dirname(place["real"])):
        raise NodeError(f"{os.path.dirname(place['real'])} is not there", "no_folder",
                        "make the folder first")  # fmt: skip
    if place["link"] is not None:
        tree_step.inspect_link(place["tree"])  # a folder where the link was is refused
    elif os.path.islink(place["real"]):
        raise NodeError(f"{place['real']} is a link now; it was a folder", "not_a_link",
                        f"look at it with: ls -ld {shlex.quote(place['real'])}")  # fmt: skip
    return place


def _room(manifest: Json, place: Json) -> None:
    """Raise NodeError when the unpacked tree has no room beside the one that is there."""
    above = os.path.dirname(place["real"])
    create.check_room(above, manifest["room_bytes"], manifest["members"]["count"])


def _different(manifest: Json, place: Json) -> str:
    """Gives in what the tree is not as the backup, "" when it is."""
    link = place["link"]
    if link is not None and tree_step.inspect_link(place["tree"]).get("target") != link:
        return f"{place['tree']} does not point to {place['link']}"
    if not os.path.isdir(place["real"]):
        return f"{place['real']} is not there"
    return verify.first_difference(manifest["id"], manifest, place["real"])


def _files(manifest: Json, place: Json) -> list[Json]:
    """Gives the steps for the recorded files; none where the tree goes to another path."""
    if place["tree"] != manifest["tree"]:
        return []
    return differing_host_files(create.check_files(manifest["id"], manifest))


def _plan(manifest: Json, place: Json, waived: list[str]) -> Json:
    """Gives what a restore would do; reads only."""
    different, rows = _different(manifest, place), _files(manifest, place)
    if different:
        _room(manifest, place)
    files = host_file_words(rows)
    detail = different or "; ".join(files) or "the tree is as the backup"
    return {**_about(manifest, place), "change": None, "status": None,
            "changed": bool(different or rows), "unpacks": bool(different), "files": files,
            "detail": detail, "waived": waived, "room_bytes": manifest["room_bytes"]}  # fmt: skip


def _about(manifest: Json, place: Json) -> Json:
    """Gives what every answer says."""
    return {"backup": manifest["id"], "tree": place["tree"], "real": place["real"],
            "members": manifest["members"]["count"], "bytes": manifest["payload"]["bytes"],
            "versions": manifest["facts"]["versions"]}  # fmt: skip


def _nothing(steps: Transaction, manifest: Json, place: Json) -> Json:
    """Gives the answer when the tree is as the backup."""
    return {**_about(manifest, place), **steps.answer(), "changed": False, "displaced": [],
            "files": [], "detail": "the tree is as the backup"}  # fmt: skip


def _restore(
    steps: Transaction,
    manifest: Json,
    place: Json,
    waived: list[str],
    unpacks: bool,
    found: tuple[Json, Unpacked] | None,
) -> Json:
    """Do it, step by step; on an error before the first trade nothing is left of it."""
    began = time.time()
    setuid: list[str] = []
    kept: list[str] = []
    unpacked_s = 0.0
    try:
        if unpacks:
            work, unpacked = found or make_beside(steps, manifest, place)
            setuid = unpacked.setuid
            unpacked_s = time.time() - began
            kept = _trade(steps, manifest, place, work)
            if place["link"] is not None:
                wanted = {"op": "link", "path": place["tree"], "target": place["link"],
                          "expect": None}  # fmt: skip
                tree_step.LinkKind("link").do(wanted, steps)
        bring_back(place["files"], steps)
        if unpacks:
            _look(manifest, place, unpacked)
    except (NodeError, OSError) as error:
        raise steps.take_back(error) from error
    return {**_about(manifest, place), **steps.answer(), "changed": True,
            "displaced": kept, "detail": "restored",
            "files": host_file_words(place["files"]), "setuid": setuid[:100], "waived": waived,
            "unpacked_s": round(unpacked_s, 2),
            "took_s": round(time.time() - began, 2)}  # fmt: skip


def _look(manifest: Json, place: Json, unpacked: Unpacked) -> None:
    """Raise NodeError unless what lies there now is the backup, the host's files too.

    A file whose inode and ctime are those it was proven with is not read once more: nobody can
    write to a file and keep its ctime.
    """
    with dirfd.folder(place["real"]) as fd:
        wrong = verify.Comparison(manifest["id"], manifest, fd, unpacked.marks).first()
        if os.lstat(place["real"]).st_ino != unpacked.marks[0][0]:
            wrong = "another folder took its place"
    wrong = wrong or "; ".join(host_file_words(_files(manifest, place)))
    if wrong:
        raise NodeError(f"what lies in {place['real']} is not what was restored: {wrong}",
                        "tree_failed", "end what writes there, then run it again")  # fmt: skip


def _trade(steps: Transaction, manifest: Json, place: Json, work: Json) -> list[str]:
    """Trade the unpacked tree for what lies there; gives what was displaced."""
    new, old = (os.path.join(work["path"], name) for name in (tree_step.NEW, tree_step.OLD))
    with dirfd.private(work["path"]) as fd:
        os.rmdir(tree_step.OLD, dir_fd=fd)
    work["used"] = True
    work["backup"] = manifest["id"]
    steps.write()
    step = {"op": "tree", "path": place["real"], "source": new, "displaced": old, "expect": None}
    TreeKind("tree").do(step, steps, backup=manifest["id"])
    return [old] if os.path.lexists(old) else []
