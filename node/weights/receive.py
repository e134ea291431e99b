"""weights receive: a weights folder from a node that offers it, by what lacks.

Each file comes into `.rigbook/` beside the weights, is hashed while it passes, flushed, and gets
its name in one rename: no half file ever has a name that an engine loads. All of it goes through
descriptors of folders (node/files/dirfd.py): the weights' owner may put links in the way.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from node.change import transaction
from node.change.journal import parse_change
from node.core import validate
from node.core.errors import Json, NodeError
from node.files import dirfd
from node.transfer import client, server, spool
from node.weights import manifest as manifests

STREAMS = 4
# Bytes after which a file's flush begins while more of it comes: else all of it waits for the end.
FLUSH = 64 << 20
_PLAIN = os.O_NOFOLLOW | os.O_CLOEXEC


def _parse_request(request: Json) -> Json:
    keys = ("change", "path", "owner", "from", "key", "deadline_s", "streams", "prune")
    body = validate.keys(request, "request", keys, keys[:5])
    return {
        "change": parse_change(body["change"]),
        "path": validate.path(body["path"], "path"),
        "owner": dirfd.owner_of(validate.name(body["owner"], "owner")),
        "from": server.parse_address(body["from"]),
        "key": validate.key(body["key"], "key"),
        "streams": int(validate.number(body.get("streams", STREAMS), "streams", 1, 32)),
        "prune": validate.boolean(body.get("prune", False), "prune"),
        "deadline_s": validate.number(body.get("deadline_s", 86400), "deadline_s", 1, 86400),
    }


def receive(request: Json) -> Json:
    """`weights receive`: bring what lacks or differs from a node that offers its weights.

    Raises NodeError. What had come stays beside the weights for the next run.
    """
    body = _parse_request(request)
    alive = server.ParentWatch()
    started = time.monotonic()
    error: str | None = "it failed"

    def gone() -> str | None:
        late = time.monotonic() - started > body["deadline_s"]
        return f"not done in {body['deadline_s']:g} s" if late else alive.gone()

    # Before the lock: the giver has to hear of a refusal, too, or it waits for nobody.
    peer = client.Peer(body["from"], body["key"], gone)
    try:
        with spool.TransferLock("weights"), contextlib.ExitStack() as stack:
            job = _Transfer(body, gone, stack)
            stack.callback(job.end)
            answer = job.run(peer)
        error = None
    except (NodeError, OSError) as failure:
        error = str(failure)
        raise
    finally:
        peer.bye(error)
    return {**answer, "took_s": round(time.monotonic() - started, 2)}


class _Transfer:
    """One folder on its way: several streams, a file each, the largest first."""

    def __init__(
        self, body: Json, gone: Callable[[], str | None], stack: contextlib.ExitStack
    ) -> None:
        self._body, self._gone, self._stack = body, gone, stack
        self._folder = manifests.Folder(body["path"])
        self._progress: spool.Progress | None = None
        self._lock = threading.Lock()
        self._errors: list[Exception] = []
        self._hashes: dict[str, manifests.Hash] = {}
        self._wire = [0, 0]
        # Descriptors of the weights' folder and of our own in it, while files come.
        self._fd = self._own = -1

    def end(self) -> None:
        """Clears the progress away."""
        if self._progress:
            self._progress.end()

    def run(self, peer: client.Peer) -> Json:
        """Brings what is to come; gives the figures."""
        theirs, outside = _listed(peer.ask({"list": True}))
        own = {row["name"]: row for row in self._folder.list()} if self._exists() else {}
        todo = [(item, row) for item, row in enumerate(theirs)
                if row["name"] not in own or not manifests.same(row, own[row["name"]])]  # fmt: skip
        # What the giver has as a link out of its folder it does have: it is nobody's extra file.
        extra = [name for name in sorted(set(own) - {row["name"] for row in theirs})
                 if not any((name + "/").startswith(out + "/") for out in outside)]  # fmt: skip
        figures = {
            "files": [row["name"] for _, row in todo],
            "bytes": sum(row["size"] for _, row in todo),
            "extra": extra,
            "outside": outside,
            "pruned": [],
        }
        if not todo and not (extra and self._body["prune"]):
            return {**figures, "changed": False}
        self._folder.require_own()
        what = {"folder": self._body["path"], "files": len(todo), "bytes": figures["bytes"]}
        with transaction.opened(self._body["change"], "weights receive") as log:
            log.begin("weights", **what)
        figures.update(self._bring(todo))
        if self._body["prune"]:
            figures["pruned"] = self._prune(extra)
        with transaction.opened(self._body["change"], "weights receive") as log:
            log.begin("weights", **what)["state"] = "done"
            log.write()
        return {**figures, "changed": True}

    def _exists(self) -> bool:
        return os.path.isdir(self._folder.path)

    def _bring(self, todo: list[tuple[int, Json]]) -> Json:
        enter = self._stack.enter_context
        self._fd = enter(dirfd.folder(self._folder.path, self._body["owner"]))
        self._own = enter(self._folder.own())
        parts = {item: _part(row) for item, row in todo}
        self._sweep(set(parts.values()))
        kept = {item: self._size(part) for item, part in parts.items()}
        total = sum(row["size"] for _, row in todo)
        spool.require_room([(self._folder.path, total - sum(kept.values()))])
        self._progress = spool.Progress("weights", total, sum(kept.values()))
        jobs: queue.Queue[tuple[int, Json]] = queue.Queue()
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

    def _stream(self, jobs: queue.Queue[tuple[int, Json]], parts: dict[int, str]) -> None:
        peer = client.Peer(self._body["from"], self._body["key"], self._gone)
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
        self, peer: client.Peer, item: int, row: Json, part: str, flusher: ThreadPoolExecutor
    ) -> None:
        flushed: Future[None] | None = None
        waiting = 0

        def grown(count: int) -> None:
            nonlocal flushed, waiting
            waiting += count
            if waiting >= FLUSH and (flushed is None or flushed.done()):
                flushed, waiting = flusher.submit(self._flush, part), 0
            with self._lock:
                if self._progress:
                    self._progress.add(count)

        digest = self._fetched(peer, item, row, part, grown)
        where, name = os.path.split(row["name"])
        owner = self._body["owner"]
        with dirfd.inside(self._fd, where, self._folder.path, owner) as folder:
            _require_replaceable(folder, name, row["name"])
            with os.fdopen(os.open(part, _PLAIN | os.O_RDWR, dir_fd=self._own), "rb+") as file:
                os.fchown(file.fileno(), owner.uid, owner.gid)
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
                info = os.fstat(file.fileno())
            os.rename(part, name, src_dir_fd=self._own, dst_dir_fd=folder)
            os.fsync(folder)
        with self._lock:
            self._hashes[row["name"]] = manifests.Hash(digest, info.st_size, info.st_mtime_ns)

    def _fetched(
        self, peer: client.Peer, item: int, row: Json, part: str, grown: client.Grown
    ) -> str:
        try:
            return client.fetch(peer, item, part, row["sha256"], grown, self._own)
        except NodeError as error:
            if error.code != "not_the_same":
                raise
            raise NodeError(f"{row['name']}: {error}", error.code, error.remedy) from None

    def _flush(self, part: str) -> None:
        """Has what a part holds by now written to the disk; what fails, the last fsync meets."""
        with contextlib.suppress(OSError):
            fd = os.open(part, _PLAIN | os.O_RDONLY, dir_fd=self._own)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def _size(self, part: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(part, dir_fd=self._own, follow_symlinks=False).st_size
        return 0

    def _sweep(self, keep: set[str]) -> None:
        """Removes parts that belong to no file of this transfer."""
        # Beside a single file others may lie, with parts of their own.
        mine = _part_of(self._folder.only) if self._folder.only else ""
        for name in os.listdir(self._own):
            if name.startswith(mine) and name.endswith(".part") and name not in keep:
                os.unlink(name, dir_fd=self._own)

    def _prune(self, extra: list[str]) -> list[str]:
        with dirfd.folder(self._folder.path) as fd:
            for path in extra:
                where, name = os.path.split(path)
                with dirfd.inside(fd, where, self._folder.path) as folder:
                    os.unlink(name, dir_fd=folder)
        return extra


def _require_replaceable(folder: int, name: str, shown: str) -> None:
    """Raises NodeError where a file cannot take a name: something else than a file has it."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise NodeError(f"{shown} is not a file: it is not replaced", "not_a_file")


def _listed(answer: Json) -> tuple[list[Json], list[str]]:
    """Gives the giver's files and its links out, every value checked: names become paths here."""
    rows = validate.array(answer.get("files"), "files", manifests.MAX_FILES)
    for n, row in enumerate(rows):
        _name(row.get("name"), f"files[{n}].name")
        validate.number(row.get("size"), f"files[{n}].size", 0, 1 << 50)
        for key in ("sha256", "probe"):
            if row.get(key) is not None:
                validate.key(row[key], f"files[{n}].{key}")
    outside = validate.array(answer.get("outside"), "outside", manifests.MAX_FILES)
    return [dict(row) for row in rows], [_name(row, "outside") for row in outside]


def _name(value: Any, where: str) -> str:
    name = validate.text(value, where)
    if name.startswith((".", "/")) or os.path.normpath(name) != name or "/." in name:
        raise NodeError(f"the giving node names a file {name[:80]!r}", "weights")
    return name


def _part(row: Json) -> str:
    """Gives the name of a file's part: another size or content of the source is another part."""
    text = f"{row['size']}\0{row['probe']}"
    return _part_of(row["name"]) + hashlib.sha256(text.encode()).hexdigest()[:16] + ".part"


def _part_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16] + "-"
