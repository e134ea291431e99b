"""tree receive: a backup from the node that offers it, read back from this host's disk.

With `host` it is another host's, and is kept for it; else it is this host's own, come back. What a
kill leaves is gone on with by the next call.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from node.backup import store, verify
from node.copies import carry, copy, host_pack, others
from node.core import validate
from node.core.errors import Json, NodeError
from node.transfer import client, server, spool

_KEYS = ("backup", "host", "from", "key", "deadline_s")


def _parse_request(request: Json) -> Json:
    body = validate.keys(request, "request", _KEYS, _KEYS[:4])
    host = body["host"]
    return {
        "backup": store.checked_id(body["backup"]),
        "host": None if host is None else others.host_name(host, "host"),
        "from": server.parse_address(body["from"]),
        "key": validate.key(body["key"], "key"),
        "deadline_s": validate.number(body.get("deadline_s", 86400), "deadline_s", 1, 86400),
    }


def receive(request: Json) -> Json:
    """`tree receive`: bring a backup that a node offers. One that is here is read back alone.

    Raises NodeError.
    """
    body = _parse_request(request)
    alive = server.ParentWatch()
    started = time.monotonic()
    error: str | None = "it failed"

    def gone() -> str | None:
        late = time.monotonic() - started > body["deadline_s"]
        return f"not done in {body['deadline_s']:g} s" if late else alive.gone()

    # before the lock: the giver has to hear of a refusal, too
    peer = client.Peer(body["from"], body["key"], gone)
    try:
        with spool.TransferLock("tree"), contextlib.ExitStack() as stack:
            if body["host"] is None:
                stack.enter_context(store.Held())
            answer = _bring(body, peer)
        error = None
    except (NodeError, OSError) as failure:
        error = str(failure)
        raise
    finally:
        peer.bye(error)
    if body["host"] is None:
        answer["members"] = verify.verify({"backup": body["backup"]})["members"]
    return {**answer, "took_s": round(time.monotonic() - started, 2)}


def _bring(body: Json, peer: client.Peer) -> Json:
    """Bring what lacks of a backup into its folder, and read all of it back."""
    backup, host = body["backup"], body["host"]
    manifest, items = _listed(backup, peer.ask({"list": True}))
    above = others.make(host) if host else store.folder()
    target = os.path.join(above, backup)
    size = store.parts_bytes(manifest)
    figures = {"backup": backup, "place": target, "bytes": size}
    if os.path.isdir(target):
        if host is None:
            raise NodeError(f"backup {backup} is on this host", "bad_request",
                            "restore it: rignode tree restore")  # fmt: skip
        carry.require_same(manifest, target)
        _check(target, manifest, peer)
        return {**figures, "made": False, "resumed_bytes": 0, "damaged": 0}
    copy.room(above, target, size)
    partial = target + store.PARTIAL
    store.private_folder(partial)
    kept = sum(entry.stat().st_size for entry in os.scandir(partial) if entry.is_file())
    progress = spool.Progress("tree", size, min(kept, size))
    try:
        for name, row in store.parts(manifest).items():
            path = os.path.join(partial, name)
            if not os.path.exists(path):
                carry.link(path, row, copy.beside(above))
            _fetch(peer, items[name], path, row["bytes"], progress.add)
    finally:
        progress.end()
    _check_files(partial, manifest, peer)
    path = os.path.join(partial, host_pack.NAME)
    _fetch(peer, items[host_pack.NAME], path, items[host_pack.NAME]["bytes"], lambda _: None)
    with open(path, "rb") as file:
        found = host_pack.load(file.read(), manifest)
    os.unlink(path)
    carry.finish(target, manifest, found)
    return {**figures, "made": True, "resumed_bytes": kept, "damaged": peer.damaged}


def _fetch(peer: client.Peer, item: Json, path: str, size: int, grown: client.Grown) -> None:
    """Bring one file, and flush it; what a kill left of it is gone on with."""
    if item["bytes"] != size:
        raise NodeError(f"the giving node has no whole {os.path.basename(path)}", "source")
    client.fetch(peer, item["number"], path, size, item["sha256"], grown, None)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(fd, 0o600)
        os.fsync(fd)
    finally:
        os.close(fd)


def _telling(peer: client.Peer, size: int) -> tuple[spool.Progress, carry.Told]:
    """Gives the progress of reading `size` bytes back; the giver hears meanwhile that somebody is
    there."""
    progress = spool.Progress("tree", size)
    progress.at("sha256")

    def told(count: int) -> None:
        peer.stop_if_gone()
        peer.here()
        progress.add(count)

    return progress, told


def _check(target: str, manifest: Json, peer: client.Peer) -> None:
    progress, told = _telling(peer, store.parts_bytes(manifest))
    try:
        carry.check(target, manifest, told)
    finally:
        progress.end()


def _check_files(partial: str, manifest: Json, peer: client.Peer) -> None:
    """Read what came back from the disk; a file that differs is removed, so that the next call
    brings it anew. Raises NodeError."""
    progress, told = _telling(peer, store.parts_bytes(manifest))
    try:
        for name, row in store.parts(manifest).items():
            path = os.path.join(partial, name)
            if carry.sha256(path, told) != row["sha256"]:
                os.unlink(path)
                raise carry.damaged(path)
    finally:
        progress.end()


def _listed(backup: str, answer: Json) -> tuple[Json, dict[str, Json]]:
    """Gives the manifest of what is offered, and its items by name: every value is checked."""
    manifest = store.checked(backup, answer.get("manifest"))
    found: dict[str, Any] = {}
    for number, row in enumerate(validate.array(answer.get("files"), "files", 1000)):
        where = f"files[{number}]"
        item = validate.keys(row, where, ("name", "size", "sha256"), ("name", "size", "sha256"))
        validate.number(item["size"], f"{where}.size", 0, 1 << 50)
        found[str(item["name"])] = {"number": number, "bytes": item["size"],
                                    "sha256": validate.key(item["sha256"], where)}  # fmt: skip
    lacking = [name for name in (*store.parts(manifest), host_pack.NAME) if name not in found]
    if lacking:
        raise NodeError(f"the giving node's backup lacks {', '.join(lacking)}", "source")
    validate.number(found[host_pack.NAME]["bytes"], host_pack.NAME, 0, host_pack.MOST)
    return manifest, found
