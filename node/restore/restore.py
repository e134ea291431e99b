"""tree restore: unpack beside, prove it, then trade places; a journalled change.

tree unpack: the first half alone, while the engine runs; tree restore then only trades.
"""

from __future__ import annotations

import os
import secrets
import shlex
import time

from node.backup import compare, compress, create, host_files, kept_files, store
from node.backup import request as backup_request
from node.backup.unpack import Unpacked
from node.change import journal, link_step, transaction, work_folder_step
from node.change.transaction import Transaction
from node.change.tree_step import TreeKind
from node.core import validate
from node.core.errors import Json, NodeError
from node.engine import held_stopped
from node.files import dirfd
from node.restore import beside, compatibility


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
        "tree": None if tree is None else backup_request.tree(tree),
        "allow": [validate.choice(row, "allow", compatibility.WAIVABLE) for row in rows],
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
    compress.programs()
    with store.Held(shared=True):
        manifest = compatibility.select(wanted["backup"], wanted["tree"])
        place = _place(manifest, wanted["tree"])
        waived = compatibility.require_compatible(manifest, place["tree"], wanted["allow"])
        if wanted["dry"]:
            return _plan(manifest, place, waived)
        with transaction.opened(wanted["change"], "tree restore") as steps:
            found = beside.ready(steps, manifest)
            beside.clear(steps, found[0] if found else None)
            place["files"] = _files(manifest, place)
            unpacks = bool(found or wanted["force"] or _different(manifest, place))
            if not unpacks and not place["files"]:
                return _nothing(steps, manifest, place)
            if unpacks and not found:
                _room(manifest, place)
            engine = held_stopped.engine_if_stopped()
            with held_stopped.unit_held(steps, engine):
                cleared = held_stopped.end_leftovers(engine) if engine else []
                answer = _restore(steps, manifest, place, waived, unpacks, found)
            return {**answer, "cleared": cleared}


def unpack(request: Json) -> Json:
    """Unpack a backup beside its tree and prove it; the engine may run meanwhile.

    The change stays OPEN: `restore` with it trades the places, an undo removes what was unpacked.
    Nothing is unpacked where that was done in this change, or the tree is as the backup already
    (`force` leaves that comparison out). On any error nothing is left.
    """
    wanted = _parse_request(request)
    compress.programs()
    with store.Held(shared=True):
        manifest = compatibility.select(wanted["backup"], wanted["tree"])
        place = _place(manifest, wanted["tree"])
        compatibility.require_compatible(manifest, place["tree"], wanted["allow"])
        with transaction.opened(wanted["change"], "tree unpack") as steps:
            found = beside.ready(steps, manifest)
            beside.clear(steps, found[0] if found else None)
            began = time.time()
            if not found and (wanted["force"] or _different(manifest, place)):
                _room(manifest, place)
                try:
                    beside.keep(steps, manifest, *beside.make(steps, manifest, place))
                except (NodeError, OSError) as error:
                    raise steps.take_back(error) from error
                return {**_about(manifest, place), **steps.answer(), "changed": True,
                        "took_s": round(time.time() - began, 2)}  # fmt: skip
            return {**_about(manifest, place), **steps.answer(), "changed": False,
                    "took_s": 0.0}  # fmt: skip


def _place(manifest: Json, tree: str | None) -> Json:
    """Gives where it goes: the folder itself, and the link to it when there was one."""
    if tree is None or tree in compatibility.names(manifest):
        place = {"tree": manifest["tree"], "real": manifest["real"], "link": manifest["link"]}
    else:
        place = {"tree": tree, "real": os.path.realpath(tree), "link": None}
    if not os.path.isdir(os.path.dirname(place["real"])):
        raise NodeError(f"{os.path.dirname(place['real'])} is not there", "no_folder",
                        "make the folder first")  # fmt: skip
    if place["link"] is not None:
        link_step.inspect_link(place["tree"])  # a folder where the link was is refused
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
    if link is not None and link_step.inspect_link(place["tree"]).get("target") != link:
        return f"{place['tree']} does not point to {place['link']}"
    if not os.path.isdir(place["real"]):
        return f"{place['real']} is not there"
    return compare.first_difference(manifest["id"], manifest, place["real"])


def _files(manifest: Json, place: Json) -> list[Json]:
    """Gives the steps for the recorded files; none where the tree goes to another path."""
    if place["tree"] != manifest["tree"]:
        return []
    return host_files.differing(kept_files.check(manifest["id"], manifest))


def _plan(manifest: Json, place: Json, waived: list[str]) -> Json:
    """Gives what a restore would do; reads only."""
    different, rows = _different(manifest, place), _files(manifest, place)
    if different:
        _room(manifest, place)
    files = host_files.words(rows)
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
            work, unpacked = found or beside.make(steps, manifest, place)
            setuid = unpacked.setuid
            unpacked_s = time.time() - began
            kept = _trade(steps, manifest, place, work)
            if place["link"] is not None:
                wanted = {"op": "link", "path": place["tree"], "target": place["link"],
                          "expect": None}  # fmt: skip
                link_step.LinkKind("link").do(wanted, steps)
        host_files.bring_back(place["files"], steps)
        if unpacks:
            _look(manifest, place, unpacked)
    except (NodeError, OSError) as error:
        raise steps.take_back(error) from error
    return {**_about(manifest, place), **steps.answer(), "changed": True,
            "displaced": kept, "detail": "restored",
            "files": host_files.words(place["files"]), "setuid": setuid[:100], "waived": waived,
            "unpacked_s": round(unpacked_s, 2),
            "took_s": round(time.time() - began, 2)}  # fmt: skip


def _look(manifest: Json, place: Json, unpacked: Unpacked) -> None:
    """Raise NodeError unless what lies there now is the backup, the host's files too.

    A file whose inode and ctime are those it was proven with is not read once more: nobody can
    write to a file and keep its ctime.
    """
    with dirfd.folder(place["real"]) as fd:
        wrong = compare.Comparison(manifest["id"], manifest, fd, unpacked.marks).first()
        if os.lstat(place["real"]).st_ino != unpacked.marks[0][0]:
            wrong = "another folder took its place"
    wrong = wrong or "; ".join(host_files.words(_files(manifest, place)))
    if wrong:
        raise NodeError(f"what lies in {place['real']} is not what was restored: {wrong}",
                        "tree_failed", "end what writes there, then run it again")  # fmt: skip


def _trade(steps: Transaction, manifest: Json, place: Json, work: Json) -> list[str]:
    """Trade the unpacked tree for what lies there; gives what was displaced."""
    new, old = (
        os.path.join(work["path"], name) for name in (work_folder_step.NEW, work_folder_step.OLD)
    )
    with dirfd.private(work["path"]) as fd:
        os.rmdir(work_folder_step.OLD, dir_fd=fd)
    work["used"] = True
    work["backup"] = manifest["id"]
    steps.write()
    step = {"op": "tree", "path": place["real"], "source": new, "displaced": old, "expect": None}
    TreeKind("tree").do(step, steps, backup=manifest["id"])
    return [old] if os.path.lexists(old) else []
