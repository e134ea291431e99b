"""Copies on another disk and on a peer."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shlex
import tarfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from node.backup import create, listing, payload, store, verify
from node.backup.create import MAX_ALL, Found, Kept
from node.backup.payload import CHUNK, FLUSH, forget
from node.core import dirfd, validate
from node.core import files as core_files
from node.core.dirfd import BLOCK
from node.core.errors import Json, NodeError
from node.transfer import client, protocol, spool

# Bring the files of a backup into another folder: resumed after a kill, read back from there.

# told the bytes that were written or read; it may raise
Told = Callable[[int], None]
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def whole_copies(source: str, target: str, manifest: Json, beside: list[str], told: Told) -> None:
    """Bring a backup's folder `source` to `target`, which is there once it is whole.

    Until then it is `target`.partial, and a later call goes on with it. Files that a backup of the
    folders `beside` has as well are linked, where the file system can. Every file is read back
    from `target`'s disk and compared with the manifest. Raises NodeError, OSError.
    """
    partial = target + store.PARTIAL
    store.private_folder(partial)
    for name, row in store.parts(manifest).items():
        verify.stop()
        _one(os.path.join(source, name), os.path.join(partial, name), row, beside, told)
    files = os.path.join(source, store.FILES)
    finish_copy(target, manifest, create.check_files(manifest["id"], manifest, files))


def finish_copy(target: str, manifest: Json, found: create.Found) -> None:
    """Make `target` of `target`.partial, whose files have come: the host's files and the manifest
    are what lacks. Raises NodeError, OSError.
    """
    partial = target + store.PARTIAL
    files = os.path.join(partial, store.FILES)
    if not os.path.isdir(files):
        temporary = files + store.PARTIAL
        _remove_files(temporary)
        create.write_kept(temporary, found)
        os.rename(temporary, files)
    create.check_files(manifest["id"], manifest, files)
    store.save_manifest(os.path.join(partial, store.MANIFEST), manifest)
    core_files.sync_folder(partial)
    os.rename(partial, target)
    core_files.sync_folder(os.path.dirname(target))


def check_copy(target: str, manifest: Json, told: Told) -> None:
    """Read a copy back. Raises NodeError (`copy_damaged`) unless it is as the manifest says."""
    for name, row in store.parts(manifest).items():
        verify.stop()
        path = os.path.join(target, name)
        if not os.path.isfile(path) or sha256(path, told) != row["sha256"]:
            raise damaged_copy(path)
    create.check_files(manifest["id"], manifest, os.path.join(target, store.FILES))


def require_same(manifest: Json, target: str) -> None:
    """Raise NodeError when another backup lies in `target` under the same id."""
    if store.parse(manifest["id"], target)["seal"] != manifest["seal"]:
        raise damaged_copy(target)


def damaged_copy(path: str) -> NodeError:
    """Gives the error for a file that is not what was recorded."""
    return NodeError(f"{path} is not as it was recorded", "copy_damaged",
                     "look at both disks (sudo dmesg --level=err), then copy again")  # fmt: skip


def _one(source: str, target: str, row: Json, beside: list[str], told: Told) -> None:
    size = os.path.getsize(target) if os.path.isfile(target) else 0
    if size == 0:
        size = link_copy(target, row, beside)
    again = size > 0
    if size != row["bytes"]:
        _append(source, target, row["bytes"], told)
    if sha256(target, told) == row["sha256"]:
        return
    os.unlink(target)
    if not again:
        raise damaged_copy(target)
    # what an earlier call left was no good
    _append(source, target, row["bytes"], told)
    if sha256(target, told) != row["sha256"]:
        os.unlink(target)
        raise damaged_copy(target)


def link_copy(target: str, row: Json, beside: list[str]) -> int:
    """Link a file of the same bytes in another backup, where there is one; gives its size."""
    for folder in beside:
        try:
            manifest = store.parse(os.path.basename(folder), folder)
        except NodeError:
            continue
        for name, other in store.parts(manifest).items():
            if other["sha256"] == row["sha256"] and row["bytes"]:
                try:
                    os.link(os.path.join(folder, name), target, follow_symlinks=False)
                    return os.path.getsize(target)
                except OSError:  # a file system without links, or the file is gone
                    return 0
    return 0


def _append(source: str, target: str, total: int, told: Told) -> None:
    """Write what lacks of a file; it is on the disk then, and in no page cache."""
    reading, writing = os.open(source, _READ), os.open(target, _WRITE, 0o600)
    try:
        done = os.fstat(writing).st_size
        if done > total:
            os.ftruncate(writing, 0)
            done = 0
        flushed = done
        os.lseek(reading, done, os.SEEK_SET)
        os.lseek(writing, done, os.SEEK_SET)
        while raw := os.read(reading, CHUNK):
            view = memoryview(raw)
            while view:
                view = view[os.write(writing, view) :]
            done += len(raw)
            told(len(raw))
            verify.stop()
            if done - flushed >= FLUSH:
                os.fdatasync(writing)
                forget(writing)
                forget(reading)
                flushed = done
        os.fsync(writing)
        forget(reading)
    finally:
        os.close(reading)
        os.close(writing)


def sha256(path: str, told: Told) -> str:
    """Gives a file's sha256, read from the disk."""
    digest = hashlib.sha256()
    fd = os.open(path, _READ)
    try:
        forget(fd)
        done = 0
        while raw := os.read(fd, CHUNK):
            digest.update(raw)
            told(len(raw))
            done += len(raw)
            if done % FLUSH < CHUNK:
                forget(fd)
            verify.stop()
        forget(fd)
    finally:
        os.close(fd)
    return digest.hexdigest()


def _remove_files(folder: str) -> None:
    """Remove a half-written folder of the host's files."""
    for above, folders, names in os.walk(folder, topdown=False):
        for name in names:
            os.unlink(os.path.join(above, name))
        for name in folders:
            os.rmdir(os.path.join(above, name))
    if os.path.isdir(folder):
        os.rmdir(folder)


# The host's files of a backup as one tar: how they travel where owners and modes are not kept.

HOST_PACK = "files.tar"
# 50 arguments of 50 files each, a header of at most 2 KiB and the padding for each
MOST_HOST_PACK = MAX_ALL + 2500 * 3072
_TIME = re.compile(r"(\d{1,12})\.(\d{9})")


def dump_host_pack(found: Found) -> bytes:
    """Gives the tar: the same bytes for the same files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, kept in sorted(found.items()):
            if kept is None:
                continue
            info = tarfile.TarInfo(path[1:])
            info.size, info.mode = len(kept.raw), kept.mode
            info.uid, info.gid, info.mtime = kept.uid, kept.gid, kept.mtime // 10**9
            # to the nanosecond, which a float does not hold
            info.pax_headers = {"mtime": f"{kept.mtime // 10**9}.{kept.mtime % 10**9:09}"}
            tar.addfile(info, io.BytesIO(kept.raw))
    return raw.getvalue()


def load_host_pack(raw: bytes, manifest: Json) -> Found:
    """Gives the files of a tar that a manifest lists. Raises NodeError (`backup_damaged`)."""
    listed = manifest["files"]
    found: Found = dict.fromkeys(listed)
    for path in listed:
        validate.path(path, "files")
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
            for info in tar:
                file = tar.extractfile(info) if info.isreg() else None
                if file is None or f"/{info.name}" not in listed:
                    raise store.damaged(manifest["id"], f"{HOST_PACK} has {info.name[:80]!r}")
                found[f"/{info.name}"] = Kept(file.read(), info.mode, info.uid, info.gid,
                                              _mtime(info))  # fmt: skip
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise store.damaged(manifest["id"], f"{HOST_PACK}: {error}") from None
    return found


def _mtime(info: tarfile.TarInfo) -> int:
    exact = _TIME.fullmatch(info.pax_headers.get("mtime", ""))
    if exact is None:
        raise NodeError(f"{HOST_PACK}: {info.name[:80]!r} has no time", "backup_damaged")
    return int(exact[1]) * 10**9 + int(exact[2])


# tree copy and tree take: a verified backup onto another disk, and back from there.
#
# Where copies lie and when they were last read back stands in /var/lib/rigbook/copies/ID.json.


def copy(request: Json) -> Json:
    """Copy a verified backup (the newest one without an id) to a folder on another disk, and read
    it back from there. One that lies there already is read back alone.

    Raises NodeError; what a kill or an error left is gone on with by the next call.
    """
    body = validate.keys(request, "request", ("backup", "to"), ("to",))
    to = listing.parse_place(body["to"], "to")
    began = time.time()
    with store.Held():
        row = _verified(body.get("backup"))
        manifest = row.manifest or {}
        target = listing.place_folder(to, row.id)
        folder = listing.make_place(to)
        size = store.parts_bytes(manifest)
        made = not os.path.isdir(target)
        progress = payload.Progress(f"copy {row.id} to {to}", size * (2 if made else 1),
                                     store.of(row.id, store.NOTE))  # fmt: skip
        try:
            if made:
                room_for_copy(folder, target, size)
                whole_copies(store.of(row.id), target, manifest, beside(folder), progress.add)
            else:
                require_same(manifest, target)
                check_copy(target, manifest, progress.add)
        finally:
            progress.over()
        store.note_copy(row.id, target, time.time())
    return {"backup": row.id, "place": target, "made": made, "bytes": size,
            "took_s": round(time.time() - began, 2)}  # fmt: skip


def take(request: Json) -> Json:
    """Bring a backup that is not on this host any more back from a copy, and verify it.

    Without `from` from where this host noted a copy. Raises NodeError.
    """
    body = validate.keys(request, "request", ("backup", "from"), ("backup",))
    backup = store.checked_id(body["backup"])
    began = time.time()
    with store.Held():
        if os.path.isdir(store.of(backup)):
            raise NodeError(f"backup {backup} is on this host", "bad_request",
                            "restore it: rignode tree restore")  # fmt: skip
        source = _source(backup, body.get("from"))
        manifest = store.parse(backup, source)
        for path in manifest["files"]:
            validate.path(path, "files")
        size = store.parts_bytes(manifest)
        room_for_copy(store.folder(), store.of(backup), size)
        progress = payload.Progress(f"take {backup} from {source}", size * 2)
        own = [store.of(row.id) for row in store.all_backups()]
        whole_copies(source, store.of(backup), manifest, own, progress.add)
    read = verify.verify({"backup": backup})
    return {**read, "place": source, "took_s": round(time.time() - began, 2)}


def _verified(wanted: object) -> store.Backup:
    """Gives the backup to copy: verified, with nothing known against it."""
    rows = store.all_backups()
    if wanted is not None:
        name = store.checked_id(wanted)
        store.load(name)
        rows = [row for row in rows if row.id == name]
    rows = [row for row in rows if row.manifest and row.verified and not row.problem]
    if not rows:
        raise NodeError("there is no verified backup to copy", "no_backup",
                        "make one, or verify it: rignode tree verify")  # fmt: skip
    found = rows[-1]
    create.check_files(found.id, found.manifest or {})
    return found


def beside(folder: str) -> list[str]:
    """Gives the copies that lie in a folder."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))
            if store.ID.match(name)]  # fmt: skip


def room_for_copy(folder: str, target: str, size: int) -> None:
    """Raise NodeError when the rest of a copy has no room; what a kill left counts as there."""
    partial = target + store.PARTIAL
    there = 0
    if os.path.isdir(partial):
        there = sum(entry.stat().st_size for entry in os.scandir(partial) if entry.is_file())
    create.check_room(folder, max(size - there, 0), 64)


def _source(backup: str, given: object) -> str:
    """Gives the folder of a copy. Raises NodeError when none is there, or others can write it."""
    if given is not None:
        places = [listing.place_folder(listing.parse_place(given, "from"), backup)]
    else:
        places = [row["place"] for row in store.copies(backup)]
    for path in places:
        if os.path.isdir(path):
            if not listing.is_ours(path):
                raise NodeError(f"{path} is not root's alone", "unsafe_folder",
                                f"sudo ls -ld {shlex.quote(path)}")  # fmt: skip
            return path
    raise NodeError(f"no copy of {backup} in {', '.join(places) or 'any place that is noted'}",
                    "no_backup", "mount the disk; name the folder on it as from")  # fmt: skip


# tree offer: give a backup to a peer, or a copy that this host keeps back to the one it is of.


class Folder(protocol.Source):
    """A backup's folder: its files, and the host's files in it as one tar. Raises NodeError."""

    def __init__(self, backup: str, folder: str) -> None:
        self._folder = folder
        self._manifest = store.parse(backup, folder)
        found = create.check_files(backup, self._manifest, os.path.join(folder, store.FILES))
        self._pack = dump_host_pack(found)
        self._rows = [{"name": name, "size": row["bytes"], "sha256": row["sha256"]}
                      for name, row in store.parts(self._manifest).items()]  # fmt: skip
        digest = hashlib.sha256(self._pack).hexdigest()
        self._rows.append({"name": HOST_PACK, "size": len(self._pack), "sha256": digest})

    def listing(self) -> Json:
        """Gives the manifest, and the items by number."""
        return {"manifest": self._manifest, "files": self._rows}

    def size(self, item: int) -> int:
        """Gives a file's size."""
        return int(self._rows[item]["size"])

    def blocks(self, item: int, offset: int) -> Iterator[memoryview]:
        """Gives a file's bytes."""
        name = self._rows[item]["name"]
        if name == HOST_PACK:
            for at in range(offset, len(self._pack), BLOCK):
                yield memoryview(self._pack)[at : at + BLOCK]
            return
        fd = os.open(os.path.join(self._folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        buffer = bytearray(BLOCK)
        with os.fdopen(fd, "rb", buffering=0) as file, dirfd.Passing(fd) as passing:
            file.seek(offset)
            for count in iter(lambda: file.readinto(buffer), 0):
                yield memoryview(buffer)[:count]
                offset += count
                passing.upto(offset)

    def passed(self, item: int, sha256: str) -> None:
        """Is told what came out of the file; the taker compares it with the manifest."""

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives what the manifest says of a file."""
        return str(self._rows[item]["sha256"])


def offer(request: Json) -> Json:
    """`tree offer`: give `backup` of this host, or with `host` the copy of it that is kept for that
    one, to the peers. Raises NodeError.
    """
    wanted = protocol.parse_request(request, ["backup", "host"])
    backup = store.checked_id(request["backup"])
    if request["host"] is None:
        with store.Held(shared=True):
            row = store.inspect(backup)
            if row.problem or not row.verified:
                raise NodeError(f"backup {backup} is not verified {row.problem}".rstrip(),
                                "no_backup", "rignode tree verify")  # fmt: skip
            return protocol.serve_server(Folder(backup, store.of(backup)), wanted)
    host = listing.host_name(request["host"], "host")
    folder = listing.others_folder(host, backup)
    if not os.path.isdir(folder):
        raise NodeError(f"no copy of {backup} of {host} on this host", "no_backup",
                        "rignode tree copies")  # fmt: skip
    return protocol.serve_server(Folder(backup, folder), wanted)


# tree receive: a backup from the node that offers it, read back from this host's disk.
#
# With `host` it is another host's, and is kept for it; else it is this host's own, come back. What
# a
# kill leaves is gone on with by the next call.

_KEYS = ("backup", "host", "from", "key", "deadline_s")


def _parse_request(request: Json) -> Json:
    body = validate.keys(request, "request", _KEYS, _KEYS[:4])
    host = body["host"]
    return {
        "backup": store.checked_id(body["backup"]),
        "host": None if host is None else listing.host_name(host, "host"),
        "from": protocol.parse_address(body["from"]),
        "key": validate.key(body["key"], "key"),
        "deadline_s": validate.number(body.get("deadline_s", 86400), "deadline_s", 1, 86400),
    }


def receive(request: Json) -> Json:
    """`tree receive`: bring a backup that a node offers. One that is here is read back alone.

    Raises NodeError.
    """
    body = _parse_request(request)
    alive = protocol.ParentWatch()
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
    above = listing.make_others(host) if host else store.folder()
    target = os.path.join(above, backup)
    size = store.parts_bytes(manifest)
    figures = {"backup": backup, "place": target, "bytes": size}
    if os.path.isdir(target):
        if host is None:
            raise NodeError(f"backup {backup} is on this host", "bad_request",
                            "restore it: rignode tree restore")  # fmt: skip
        require_same(manifest, target)
        _check(target, manifest, peer)
        return {**figures, "made": False, "resumed_bytes": 0, "damaged": 0}
    room_for_copy(above, target, size)
    partial = target + store.PARTIAL
    store.private_folder(partial)
    kept = sum(entry.stat().st_size for entry in os.scandir(partial) if entry.is_file())
    progress = spool.Progress("tree", size, min(kept, size))
    try:
        for name, row in store.parts(manifest).items():
            path = os.path.join(partial, name)
            if not os.path.exists(path):
                link_copy(path, row, beside(above))
            _fetch(peer, items[name], path, row["bytes"], progress.add)
    finally:
        progress.end()
    _check_files(partial, manifest, peer)
    path = os.path.join(partial, HOST_PACK)
    _fetch(peer, items[HOST_PACK], path, items[HOST_PACK]["bytes"], lambda _: None)
    with open(path, "rb") as file:
        found = load_host_pack(file.read(), manifest)
    os.unlink(path)
    finish_copy(target, manifest, found)
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


def _telling(peer: client.Peer, size: int) -> tuple[spool.Progress, Told]:
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
        check_copy(target, manifest, told)
    finally:
        progress.end()


def _check_files(partial: str, manifest: Json, peer: client.Peer) -> None:
    """Read what came back from the disk; a file that differs is removed, so that the next call
    brings it anew. Raises NodeError."""
    progress, told = _telling(peer, store.parts_bytes(manifest))
    try:
        for name, row in store.parts(manifest).items():
            path = os.path.join(partial, name)
            if sha256(path, told) != row["sha256"]:
                os.unlink(path)
                raise damaged_copy(path)
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
    lacking = [name for name in (*store.parts(manifest), HOST_PACK) if name not in found]
    if lacking:
        raise NodeError(f"the giving node's backup lacks {', '.join(lacking)}", "source")
    validate.number(found[HOST_PACK]["bytes"], HOST_PACK, 0, MOST_HOST_PACK)
    return manifest, found
