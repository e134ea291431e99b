"""weights offer, weights hash: a weights folder as the node that has it reads it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from node.core import validate
from node.core.errors import Json, NodeError
from node.files import cold_read
from node.transfer import server, spool
from node.transfer.block import BLOCK
from node.weights import beside
from node.weights import manifest as manifests

# Bytes that a disk is asked for before they are needed: less than cold_read drops behind the end.
AHEAD = 8 << 20


class Files(server.Source):
    """A weights folder of this host."""

    def __init__(self, folder: manifests.Folder) -> None:
        self._folder = folder
        self._files = folder.list()
        self._lock = threading.Lock()
        self._outside = folder.outside()
        self.hashes: dict[str, manifests.Hash] = {}

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
        with self._folder.opened(row["name"]) as file, cold_read.Passing(file.fileno()) as passing:
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
            self.hashes[row["name"]] = manifests.Hash(
                sha256, row["ino"], row["size"], row["mtime_ns"], row["ctime_ns"]
            )

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives a file's sha256: known, learned while it passed, or read for."""
        row = self._files[item]
        found = self._known(row)
        if found is None:
            with self._folder.opened(row["name"]) as file:
                _unchanged(row, file.fileno())
                found = manifests.hash_of(file, row["name"], lambda count: tick()).sha256
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


def _folder(value: Any) -> manifests.Folder:
    return manifests.Folder(validate.path(value, "path"))


def offer_weights(request: Json) -> Json:
    """`weights offer`: give a weights folder to the peers, then be gone."""
    wanted = server.parse_request(request, ["path"])
    folder = _folder(request["path"])
    source = Files(folder)
    listing = source.listing()
    if not listing["files"]:
        out = len(listing["outside"])
        links = f"; {out} links lead out of it" if out else ""
        raise NodeError(f"{request['path']} holds no files{links}", "weights",
                        "links are followed inside the folder, and in a Hugging Face cache from "
                        "models--NAME/snapshots/REVISION: name that; or cp -rL")  # fmt: skip
    mixed = beside.incomplete(request["path"])
    if mixed is not None:
        raise NodeError(f"the weights in {request['path']} are half switched by change {mixed}",
                        "weights", f"rignode undo {mixed}")  # fmt: skip
    answer = server.serve(source, wanted)
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
    alive = server.ParentWatch()
    with spool.TransferLock("weights"):
        rows = folder.list()
        todo = [row for row in rows if again or row["sha256"] is None]
        progress = spool.Progress("weights", sum(row["size"] for row in todo))
        progress.at("sha256")

        def one(row: Json) -> tuple[str, manifests.Hash]:
            def tick(count: int) -> None:
                why = alive.gone()
                if why:
                    raise NodeError(f"hashing stopped: {why}", "interrupted")
                progress.add(count)

            with folder.opened(row["name"]) as file:
                return row["name"], manifests.hash_of(file, row["name"], tick)

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
