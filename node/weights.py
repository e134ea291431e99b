"""weights offer, weights receive, weights hash: a weights folder from node to node, by what lacks.

Each file comes into `.rigbook/` beside the weights, is hashed while it passes, flushed, and gets
its name in one rename: no half file ever has a name that an engine loads.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from node import atomic, check, fetch, lasting, offer, spool, wire
from node import manifest as manifests
from node.errors import Json, NodeError
from node.journal import checked_change
from node.state import sync_folder

STREAMS = 4
# Bytes after which a file's flush begins while more of it comes: else all of it waits for the end.
FLUSH = 64 << 20


class Files(offer.Source):
    """A weights folder of this host."""

    def __init__(self, folder: manifests.Folder) -> None:
        self._folder = folder
        self._files = folder.list()
        self._lock = threading.Lock()
        self.hashes: Dict[str, str] = {}

    def listing(self) -> Json:
        """Gives the files as they were when the offer began."""
        return {"files": self._files}

    def size(self, item: int) -> int:
        """Gives a file's size."""
        return int(self._files[item]["size"])

    def blocks(self, item: int, offset: int) -> Iterator[memoryview]:
        """Gives a file's bytes. Raises NodeError where somebody writes to it meanwhile."""
        row = self._files[item]
        buffer = bytearray(wire.BLOCK)
        with open(os.path.join(self._folder.path, row["name"]), "rb", buffering=0) as file:
            _unchanged(row, file.fileno())
            file.seek(offset)
            for count in iter(lambda: file.readinto(buffer), 0):
                yield memoryview(buffer)[:count]
            _unchanged(row, file.fileno())

    def hashing(self, item: int, offset: int) -> bool:
        """Gives whether a file that passes whole is to be hashed: unless it is known."""
        return offset == 0 and self._known(self._files[item]) is None

    def learned(self, item: int, sha256: str) -> None:
        """Keeps a file's sha256, for the folder's manifest."""
        with self._lock:
            self.hashes[self._files[item]["name"]] = sha256

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives a file's sha256: known, learned while it passed, or read for."""
        row = self._files[item]
        found = self._known(row)
        if found is None:
            path = os.path.join(self._folder.path, row["name"])
            found = manifests.sha256_of(path, lambda count: tick())
            self.learned(item, found)
        return found

    def _known(self, row: Json) -> Optional[str]:
        return row["sha256"] or self.hashes.get(row["name"])


def _unchanged(row: Json, fd: int) -> None:
    info = os.fstat(fd)
    if (info.st_size, info.st_mtime_ns) != (row["size"], row["mtime_ns"]):
        raise NodeError(f"{row['name']} is written to while it is given", "weights")


def _folder(value: Any) -> manifests.Folder:
    return manifests.Folder(check.path(value, "path"))


def offer_weights(request: Json) -> Json:
    """`weights offer`: give a weights folder to the peers, then be gone."""
    wanted = offer.checked(request, ["path"])
    folder = _folder(request["path"])
    source = Files(folder)
    if not source.listing()["files"]:
        raise NodeError(f"{request['path']} holds no files", "weights")
    answer = offer.serve(source, wanted)
    if source.hashes:
        folder.save(source.hashes)
    return {**answer, "hashed": len(source.hashes)}


def hashed(request: Json) -> Json:
    """`weights hash`: each file with its sha256; hashes what the manifest does not know, or all."""
    body = check.keys(request, "request", ("path", "again"), ("path",))
    again = check.boolean(body.get("again", False), "again")
    folder = _folder(body["path"])
    alive = offer.Alive()
    with spool.Busy("weights"):
        rows = folder.list()
        todo = [row for row in rows if again or row["sha256"] is None]
        progress = spool.Progress("weights", sum(row["size"] for row in todo))
        progress.at("sha256")

        def one(row: Json) -> Tuple[str, str]:
            def tick(count: int) -> None:
                why = alive.gone()
                if why:
                    raise NodeError(f"hashing stopped: {why}", "interrupted")
                progress.add(count)

            path = os.path.join(folder.path, row["name"])
            return row["name"], manifests.sha256_of(path, tick)

        try:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                found = dict(pool.map(one, todo))
        finally:
            progress.end()
        changed = [row["name"] for row in todo if row["sha256"] not in (None, found[row["name"]])]
        if found:
            folder.save(found)
    files = [{"name": r["name"], "size": r["size"], "sha256": found.get(r["name"]) or r["sha256"]}
             for r in rows]  # fmt: skip
    return {"files": files, "hashed": len(found), "changed": changed}


def _checked(request: Json) -> Json:
    keys = ("change", "path", "owner", "from", "key", "deadline_s", "streams", "prune")
    body = check.keys(request, "request", keys, keys[:5])
    return {
        "change": checked_change(body["change"]),
        "path": check.path(body["path"], "path"),
        "owner": check.name(body["owner"], "owner"),
        "from": offer.place(body["from"]),
        "key": check.key(body["key"], "key"),
        "streams": int(check.number(body.get("streams", STREAMS), "streams", 1, 32)),
        "prune": check.boolean(body.get("prune", False), "prune"),
    }


def receive(request: Json) -> Json:
    """`weights receive`: bring what lacks or differs from a node that offers its weights.

    Raises NodeError. What had come stays beside the weights for the next run.
    """
    body = _checked(request)
    alive = offer.Alive()
    started = time.monotonic()
    error: Optional[str] = "it failed"
    with spool.Busy("weights"):
        peer = fetch.Peer(body["from"], body["key"], alive.gone)
        job = _Transfer(body, alive)
        try:
            answer = job.run(peer)
            error = None
        except (NodeError, OSError) as failure:
            error = str(failure)
            raise
        finally:
            peer.bye(error)
            job.end()
    return {**answer, "took_s": round(time.monotonic() - started, 2)}


class _Transfer:
    """One folder on its way: several streams, a file each, the largest first."""

    def __init__(self, body: Json, alive: offer.Alive) -> None:
        self._body, self._alive = body, alive
        self._folder = _folder(body["path"])
        self._progress: Optional[spool.Progress] = None
        self._lock = threading.Lock()
        self._errors: List[Exception] = []
        self._hashes: Dict[str, str] = {}
        self._wire = [0, 0]

    def end(self) -> None:
        """Clears the progress away."""
        if self._progress:
            self._progress.end()

    def run(self, peer: fetch.Peer) -> Json:
        """Brings what is to come; gives the figures."""
        theirs = _listed(peer.ask({"list": True}))
        own = {row["name"]: row for row in self._folder.list()} if self._exists() else {}
        todo = [(item, row) for item, row in enumerate(theirs)
                if row["name"] not in own or not manifests.same(row, own[row["name"]])]  # fmt: skip
        extra = sorted(set(own) - {row["name"] for row in theirs})
        figures = {
            "files": [row["name"] for _, row in todo],
            "bytes": sum(row["size"] for _, row in todo),
            "extra": extra,
            "pruned": [],
        }
        if not todo and not (extra and self._body["prune"]):
            return {**figures, "changed": False}
        what = {"folder": self._body["path"], "files": len(todo), "bytes": figures["bytes"]}
        with lasting.opened(self._body["change"], "weights receive") as log:
            log.begin("weights", **what)
        figures.update(self._bring(todo))
        if self._body["prune"]:
            figures["pruned"] = self._prune(extra)
        with lasting.opened(self._body["change"], "weights receive") as log:
            log.begin("weights", **what)["state"] = "done"
            log.record()
        return {**figures, "changed": True}

    def _exists(self) -> bool:
        return os.path.isdir(self._folder.path)

    def _bring(self, todo: List[Tuple[int, Json]]) -> Json:
        self._make_folder(self._folder.path)
        self._folder.make_own()
        parts = {item: self._folder.own(_part(row)) for item, row in todo}
        self._sweep(set(parts.values()))
        kept = {item: _size(path) for item, path in parts.items()}
        total = sum(row["size"] for _, row in todo)
        spool.require_room([(self._folder.path, total - sum(kept.values()))])
        self._progress = spool.Progress("weights", total, sum(kept.values()))
        jobs: "queue.Queue[Tuple[int, Json]]" = queue.Queue()
        for job in sorted(todo, key=lambda job: -int(job[1]["size"])):
            jobs.put(job)
        streams = [threading.Thread(target=self._stream, args=(jobs, parts), daemon=True)
                   for _ in range(min(self._body["streams"], len(todo)))]  # fmt: skip
        started = time.monotonic()
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.join()
        if self._hashes:
            self._folder.save(self._hashes)
        if self._errors:
            raise self._errors[0]
        took = round(time.monotonic() - started, 2)
        wire_bytes, damaged = self._wire
        there = sum(kept.values())
        return {"resumed_bytes": there, "wire_bytes": wire_bytes, "damaged": damaged,
                "wire_s": took}  # fmt: skip

    def _stream(self, jobs: "queue.Queue[Tuple[int, Json]]", parts: Dict[int, str]) -> None:
        peer = fetch.Peer(self._body["from"], self._body["key"], self._alive.gone)
        try:
            with ThreadPoolExecutor(1) as flusher:
                while not self._errors:
                    item, row = jobs.get_nowait()
                    self._one(peer, item, row, parts[item], flusher)
        except queue.Empty:
            pass
        except Exception as error:
            self._errors.append(error)
        finally:
            peer.hang_up()
            with self._lock:
                self._wire[0] += peer.wire_bytes
                self._wire[1] += peer.damaged

    def _one(
        self, peer: fetch.Peer, item: int, row: Json, part: str, flusher: ThreadPoolExecutor
    ) -> None:
        flushed: "Optional[Future[None]]" = None
        waiting = 0

        def grown(count: int) -> None:
            nonlocal flushed, waiting
            waiting += count
            if waiting >= FLUSH and (flushed is None or flushed.done()):
                flushed, waiting = flusher.submit(_flush, part), 0
            with self._lock:
                if self._progress:
                    self._progress.add(count)

        digest = fetch.fetch(peer, item, part, row["sha256"], grown)
        target = os.path.join(self._folder.path, row["name"])
        self._make_folder(os.path.dirname(target))
        with atomic.Folder(target) as folder:
            info = folder.lstat()
            if info is not None and not os.path.isfile(target):
                raise NodeError(f"{target} is not a file: it is not replaced", "not_a_file")
        with open(part, "rb+") as file:
            owner = pwd.getpwnam(self._body["owner"])
            os.fchown(file.fileno(), owner.pw_uid, owner.pw_gid)
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.rename(part, target)
        sync_folder(os.path.dirname(target))
        with self._lock:
            self._hashes[row["name"]] = digest

    def _make_folder(self, path: str) -> None:
        if os.path.isdir(path):
            return
        self._make_folder(os.path.dirname(path))
        os.mkdir(path, 0o755)
        owner = pwd.getpwnam(self._body["owner"])
        os.chown(path, owner.pw_uid, owner.pw_gid)

    def _sweep(self, keep: "set[str]") -> None:
        """Removes parts that belong to no file of this transfer."""
        for name in os.listdir(self._folder.own()):
            path = self._folder.own(name)
            if name.endswith(".part") and path not in keep:
                os.unlink(path)

    def _prune(self, extra: List[str]) -> List[str]:
        for name in extra:
            os.unlink(os.path.join(self._folder.path, name))
        return extra


def _flush(path: str) -> None:
    """Has what a file holds by now written to the disk; what fails here, the last fsync meets."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        os.fdatasync(file.fileno())


def _listed(answer: Json) -> List[Json]:
    """Gives the giver's files, every value checked: its names become paths here."""
    rows = check.array(answer.get("files"), "files", manifests.MAX_FILES)
    for n, row in enumerate(rows):
        name = check.text(row.get("name"), f"files[{n}].name")
        if name.startswith((".", "/")) or os.path.normpath(name) != name or "/." in name:
            raise NodeError(f"the giving node names a file {name[:80]!r}", "weights")
        check.number(row.get("size"), f"files[{n}].size", 0, 1 << 50)
        for key in ("sha256", "probe"):
            if row.get(key) is not None:
                check.key(row[key], f"files[{n}].{key}")
    return [dict(row) for row in rows]


def _part(row: Json) -> str:
    """Gives the name of a file's part: another size or content of the source is another part."""
    text = f"{row['name']}\0{row['size']}\0{row['probe']}"
    return hashlib.sha256(text.encode()).hexdigest()[:32] + ".part"


def _size(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_size
    return 0
