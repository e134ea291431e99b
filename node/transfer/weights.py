"""Weights offered and received."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

from node.change import journal, transaction
from node.change.journal import INTENT, UNDONE
from node.core import dirfd, validate
from node.core.dirfd import BLOCK
from node.core.errors import Json, NodeError
from node.transfer import client, manifest, protocol, spool, weights_set

# weights offer, weights hash: a weights folder as the node that has it reads it.

# Bytes that a disk is asked for before they are needed: less than cold_read drops behind the end.
AHEAD = 8 << 20


class Files(protocol.Source):
    """A weights folder of this host."""

    def __init__(self, folder: manifest.Folder) -> None:
        self._folder = folder
        self._files = folder.list()
        self._lock = threading.Lock()
        self._outside = folder.outside()
        self.hashes: dict[str, manifest.Hash] = {}

    def listing(self) -> Json:
        """Gives the files as they were when the offer began, and the links that lead out."""
        return {"files": self._files, "outside": self._outside}

    def size(self, item: int) -> int:
        """Gives a file's size."""
        return int(self._files[item]["size"])

    def blocks(self, item: int, offset: int) -> Iterator[memoryview]:
        """Gives a file's bytes. Raises NodeError where somebody writes to it meanwhile."""
        row = self._files[item]
        buffer = bytearray(BLOCK)
        with self._folder.opened(row["name"]) as file, dirfd.Passing(file.fileno()) as passing:
            _unchanged(row, file.fileno())
            file.seek(offset)
            asked = offset
            for count in iter(lambda: os.readv(file.fileno(), [buffer]), 0):
                if asked - offset < AHEAD:
                    # the disk reads on while this block is hashed and sent
                    os.posix_fadvise(file.fileno(), asked, 2 * AHEAD, os.POSIX_FADV_WILLNEED)
                    asked += 2 * AHEAD
                yield memoryview(buffer)[:count]
                offset += count
                passing.upto(offset)
            _unchanged(row, file.fileno())

    def passed(self, item: int, sha256: str) -> None:
        """Keeps the hash of a file that has passed whole, unless it is known."""
        if self._known(self._files[item]) is None:
            self._learn(item, sha256)

    def _learn(self, item: int, sha256: str) -> None:
        """Keeps a file's sha256, for the folder's manifest: of the file as it was listed."""
        row = self._files[item]
        with self._lock:
            self.hashes[row["name"]] = manifest.Hash(
                sha256, row["ino"], row["size"], row["mtime_ns"], row["ctime_ns"]
            )

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives a file's sha256: known, learned while it passed, or read for."""
        row = self._files[item]
        found = self._known(row)
        if found is None:
            with self._folder.opened(row["name"]) as file:
                _unchanged(row, file.fileno())
                found = manifest.hash_of(file, row["name"], lambda count: tick()).sha256
                _unchanged(row, file.fileno())
            self._learn(item, found)
        return found

    def _known(self, row: Json) -> str | None:
        had = self.hashes.get(row["name"])
        return row["sha256"] or (had.sha256 if had else None)


def _unchanged(row: Json, fd: int) -> None:
    info = os.fstat(fd)
    now = (info.st_ino, info.st_size, info.st_mtime_ns)
    if now != (row["ino"], row["size"], row["mtime_ns"]):
        raise NodeError(f"{row['name']} is written to while it is given", "weights")


def _folder(value: Any) -> manifest.Folder:
    return manifest.Folder(validate.path(value, "path"))


def offer_weights(request: Json) -> Json:
    """`weights offer`: give a weights folder to the peers, then be gone."""
    wanted = protocol.parse_request(request, ["path"])
    folder = _folder(request["path"])
    source = Files(folder)
    listing = source.listing()
    if not listing["files"]:
        out = len(listing["outside"])
        links = f"; {out} links lead out of it" if out else ""
        raise NodeError(f"{request['path']} holds no files{links}", "weights",
                        "links are followed inside the folder, and in a Hugging Face cache from "
                        "models--NAME/snapshots/REVISION: name that; or cp -rL")  # fmt: skip
    mixed = manifest.incomplete(request["path"])
    if mixed is not None:
        raise NodeError(f"the weights in {request['path']} are half switched by change {mixed}",
                        "weights", f"rignode undo {mixed}")  # fmt: skip
    answer = protocol.serve_server(source, wanted)
    kept: str | None = None
    if source.hashes:
        try:
            folder.save(source.hashes)
        except (NodeError, OSError) as error:
            # Every file has arrived: only the next move has to hash anew.
            kept = str(error)
    return {**answer, "hashed": len(source.hashes), "not_kept": kept}


def hashed(request: Json) -> Json:
    """`weights hash`: each file with its sha256; hashes what the manifest does not know, or all."""
    body = validate.keys(request, "request", ("path", "again"), ("path",))
    again = validate.boolean(body.get("again", False), "again")
    folder = _folder(body["path"])
    alive = protocol.ParentWatch()
    with spool.TransferLock("weights"):
        rows = folder.list()
        todo = [row for row in rows if again or row["sha256"] is None]
        progress = spool.Progress("weights", sum(row["size"] for row in todo))
        progress.at("sha256")

        def one(row: Json) -> tuple[str, manifest.Hash]:
            def tick(count: int) -> None:
                why = alive.gone()
                if why:
                    raise NodeError(f"hashing stopped: {why}", "interrupted")
                progress.add(count)

            with folder.opened(row["name"]) as file:
                return row["name"], manifest.hash_of(file, row["name"], tick)

        try:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                found = dict(pool.map(one, todo))
        finally:
            progress.end()
        said = {name: row.sha256 for name, row in found.items()}
        changed = [row["name"] for row in todo if row["sha256"] not in (None, said[row["name"]])]
        if found:
            folder.save(found)
    files = [{"name": r["name"], "size": r["size"], "sha256": said.get(r["name"]) or r["sha256"]}
             for r in rows]  # fmt: skip
    return {"files": files, "hashed": len(found), "changed": changed}


# weights receive: a weights folder from a node that offers it, by what lacks.
#
# Each file comes into `.rigbook/` beside the weights, is hashed while it passes, and flushed. Once
# all of them are there they get their names together (node/transfer/weights_set.py): neither a half
# file
# nor half a set has names that an engine loads. All of it goes through descriptors of folders
# (node/core/dirfd.py): the weights' owner may put links in the way.

# A core or two a stream: it hashes, and its thread writes.
STREAMS = min(8, max(4, os.cpu_count() or 4))
# Bytes after which a file's flush begins while more of it comes: else all of it waits for the end.
FLUSH = 64 << 20


def _parse_request(request: Json) -> Json:
    keys = ("change", "path", "owner", "from", "key", "deadline_s", "streams", "prune")
    body = validate.keys(request, "request", keys, keys[:5])
    return {
        "change": journal.parse_change(body["change"]),
        "path": validate.path(body["path"], "path"),
        "owner": dirfd.owner_of(validate.name(body["owner"], "owner")),
        "from": protocol.parse_address(body["from"]),
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
    alive = protocol.ParentWatch()
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
        self._folder = manifest.Folder(body["path"])
        self._progress: spool.Progress | None = None
        self._lock = threading.Lock()
        self._errors: list[Exception] = []
        self._hashes: dict[str, manifest.Hash] = {}
        self._wire = [0, 0]
        # The descriptor of our own folder in the weights', and what is in it, while files come.
        self._own = -1
        self._parts: weights_set.Parts

    def end(self) -> None:
        """Clears the progress away."""
        if self._progress:
            self._progress.end()

    def run(self, peer: client.Peer) -> Json:
        """Brings what is to come; gives the figures."""
        theirs, outside = _listed(peer.ask({"list": True}))
        self._finish_former()
        own = {row["name"]: row for row in self._folder.list()} if self._exists() else {}
        both = [(item, row, own[row["name"]]) for item, row in enumerate(theirs)
                if row["name"] in own]  # fmt: skip
        self._read_unclear([pair for pair in both if manifest.same(*pair[1:]) is None])
        todo = [(item, row) for item, row in enumerate(theirs)
                if row["name"] not in own or not manifest.same(row, own[row["name"]])]  # fmt: skip
        # What the giver has as a link out of its folder it does have: it is nobody's extra file.
        extra = [name for name in sorted(set(own) - {row["name"] for row in theirs})
                 if not any((name + "/").startswith(out + "/") for out in outside)]  # fmt: skip
        pruned = extra if self._body["prune"] else []
        figures = {
            "files": [row["name"] for _, row in todo],
            "bytes": sum(row["size"] for _, row in todo),
            "extra": extra,
            "outside": outside,
            "pruned": pruned,
            "replaced": [],
            "displaced": None,
            "freed": [],
        }
        if not todo and not pruned:
            self._settle()
            # All is as the giver has it: without the hashes the next move only reads it again.
            with contextlib.suppress(NodeError, OSError):
                if self._hashes:
                    self._folder.save(self._hashes)
            return {**figures, "changed": False}
        self._folder.require_own()
        with self._opened() as log:
            log.begin(
                weights_set.SET_OP,
                stage=weights_set.FETCH,
                change=self._body["change"]["id"],
                path=self._body["path"],
                owner=[*self._body["owner"]],
                count=len(todo),
                bytes=figures["bytes"],
            )
        fd = self._stack.enter_context(dirfd.folder(self._folder.path, self._body["owner"]))
        self._own = self._stack.enter_context(self._folder.own())
        names = [row["name"] for _, row in todo] + pruned
        figures["replaced"] = weights_set.require_replaceable(fd, self._folder.path, names)
        figures["freed"] = manifest.free_former(self._body["path"], self._body["change"]["id"])
        self._parts = weights_set.Parts(self._own, [row for _, row in todo], self._folder.only)
        figures.update(self._bring(todo))
        wanted = [{"name": row["name"], "part": self._parts.whole(row)} for _, row in todo]
        with self._opened() as log:
            entry = log.begin(weights_set.SET_OP)
            weights_set.switch_set(log, entry, wanted, pruned)
        figures["displaced"] = weights_set.kept_in(entry) if figures["replaced"] else None
        self._save([row for _, row in todo], wanted)
        return {**figures, "changed": True}

    def _exists(self) -> bool:
        return os.path.isdir(self._folder.path)

    def _opened(self) -> contextlib.AbstractContextManager[transaction.Transaction]:
        return transaction.opened(self._body["change"], "weights receive")

    def _finish_former(self) -> None:
        """Has the names that a killed run of this change had begun to switch switched."""
        if journal.find(self._body["change"]["id"]):
            with self._opened():
                pass

    def _settle(self) -> None:
        """All files are as the giver's: ends a step that was announced, and a mark that nobody
        owns any more."""
        if journal.find(self._body["change"]["id"]):
            with self._opened() as log:
                for row in log.rows:
                    if row["op"] == weights_set.SET_OP and row["state"] == INTENT:
                        log.finish(row, UNDONE)
        by = manifest.incomplete(self._body["path"])
        if by is not None and manifest.is_settled(by):
            with self._folder.own() as own:
                manifest.unmark_beside(own)

    def _save(self, rows: list[Json], switched: list[Json]) -> None:
        came = {row["name"]: weights_set.hash_of_post(self._parts.digest(row), done["post"])
                for row, done in zip(rows, switched, strict=True)}  # fmt: skip
        self._folder.save({**self._hashes, **came})

    def _read_unclear(self, pairs: list[tuple[int, Json, Json]]) -> None:
        """Has files read whole, here and at the giver, that have one size and the same ends: each
        row (the giver's and our own) gets its sha256 where it is not known."""
        if not pairs:
            return
        ours = sum(mine["size"] for _, _, mine in pairs if mine["sha256"] is None)
        progress = self._progress = spool.Progress("weights", ours)
        progress.at("sha256")

        def one(item: int, row: Json, mine: Json) -> None:
            peer = client.Peer(self._body["from"], self._body["key"], self._ended)

            def tick(count: int) -> None:
                peer.stop_if_gone()
                peer.here()
                with self._lock:
                    progress.add(count)

            try:
                if row["sha256"] is None:
                    said = peer.ask({"sha256": item})
                    row["sha256"] = validate.key(said.get("sha256"), f"files[{item}].sha256")
                if mine["sha256"] is None:
                    with self._folder.opened(mine["name"]) as file:
                        found = manifest.hash_of(file, mine["name"], tick)
                    self._hashes[mine["name"]], mine["sha256"] = found, found.sha256
            except Exception as error:
                self._errors.append(error)  # which ends the others
            finally:
                peer.hang_up()

        with ThreadPoolExecutor(self._body["streams"]) as pool:
            list(pool.map(lambda pair: one(*pair), pairs))
        progress.end()
        if self._errors:
            raise self._errors[0]

    def _bring(self, todo: list[tuple[int, Json]]) -> Json:
        kept = {item: self._parts.size(row) for item, row in todo}
        total = sum(row["size"] for _, row in todo)
        spool.require_room([(self._folder.path, total - sum(kept.values()))])
        self._progress = spool.Progress("weights", total, sum(kept.values()))
        jobs: queue.Queue[tuple[int, Json]] = queue.Queue()
        for job in sorted(todo, key=lambda job: -int(job[1]["size"])):
            jobs.put(job)
        streams = [threading.Thread(target=self._stream, args=(jobs,), daemon=True)
                   for _ in range(min(self._body["streams"], len(todo)))]  # fmt: skip
        started = time.monotonic()
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.join()
        if self._errors:
            raise self._errors[0]
        took = round(time.monotonic() - started, 2)
        wire_bytes, damaged = self._wire
        there = sum(kept.values())
        return {"resumed_bytes": there, "wire_bytes": wire_bytes, "damaged": damaged,
                "wire_s": took}  # fmt: skip

    def _ended(self) -> str | None:
        """Gives why a stream has to end: nobody waits, or another one has failed."""
        return str(self._errors[0]) if self._errors else self._gone()

    def _stream(self, jobs: queue.Queue[tuple[int, Json]]) -> None:
        peer = client.Peer(self._body["from"], self._body["key"], self._ended)
        try:
            with ThreadPoolExecutor(1) as flusher:
                while not self._errors:
                    item, row = jobs.get_nowait()
                    if self._parts.whole(row) is None:
                        self._one(peer, item, row, flusher)
        except queue.Empty:
            pass
        except Exception as error:
            self._errors.append(error)
        finally:
            peer.hang_up()
            with self._lock:
                self._wire[0] += peer.wire_bytes
                self._wire[1] += peer.damaged

    def _one(self, peer: client.Peer, item: int, row: Json, flusher: ThreadPoolExecutor) -> None:
        flushed: Future[None] | None = None
        waiting = 0

        def grown(count: int) -> None:
            nonlocal flushed, waiting
            waiting += count
            if waiting >= FLUSH and (flushed is None or flushed.done()):
                if flushed is not None:
                    flushed.result()
                flushed, waiting = flusher.submit(self._parts.flush, row), 0
            with self._lock:
                if self._progress:
                    self._progress.add(count)

        digest = self._fetched(peer, item, row, grown)
        if flushed is not None:
            flushed.result()  # what the last flush would not meet again
        self._parts.complete(row, digest)

    def _fetched(self, peer: client.Peer, item: int, row: Json, grown: client.Grown) -> str:
        part, size, want = self._parts.part(row), int(row["size"]), row["sha256"]
        try:
            return client.fetch(peer, item, part, size, want, grown, self._own)
        except NodeError as error:
            if error.code != "not_the_same":
                raise
            raise NodeError(f"{row['name']}: {error}", error.code, error.remedy) from None


def _listed(answer: Json) -> tuple[list[Json], list[str]]:
    """Gives the giver's files and its links out, every value checked: names become paths here."""
    rows = validate.array(answer.get("files"), "files", manifest.MAX_FILES)
    for n, row in enumerate(rows):
        _name(row.get("name"), f"files[{n}].name")
        validate.number(row.get("size"), f"files[{n}].size", 0, 1 << 50)
        for key in ("sha256", "probe"):
            if row.get(key) is not None:
                validate.key(row[key], f"files[{n}].{key}")
    names = {row["name"] for row in rows}
    folders = {str(above) for name in names for above in PurePosixPath(name).parents}
    if len(names) < len(rows) or names & folders:
        raise NodeError("the giving node names a file twice, or one as a folder too", "weights")
    outside = validate.array(answer.get("outside"), "outside", manifest.MAX_FILES)
    return [dict(row) for row in rows], [_name(row, "outside") for row in outside]


def _name(value: Any, where: str) -> str:
    name = validate.text(value, where)
    if name.startswith((".", "/")) or os.path.normpath(name) != name or "/." in name:
        raise NodeError(f"the giving node names a file {name[:80]!r}", "weights")
    return name
