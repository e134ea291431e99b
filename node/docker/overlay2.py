"""Layers of docker's graph-driver store (overlay2), read without docker.

`docker save` reads and writes the whole image before its first byte comes. The store keeps for
each layer its files and, in tar-split.json.gz, everything of its tar that is not file content, in
order: put together they are the layer's tar byte for byte, whose sha256 is its diff id.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from node.core.errors import NodeError
from node.rules.patterns import DIGEST
from node.transfer.block import BLOCK

_CACHE = re.compile(r"^[0-9a-z-]{16,80}$")
DRIVER = "overlay2"
Reader = Callable[[memoryview], int]


def chains(diff_ids: list[str]) -> list[str]:
    """Gives the chain id of each layer: the first one's diff id, then sha256("parent diff")."""
    found: list[str] = []
    for diff in diff_ids:
        if found:
            diff = "sha256:" + hashlib.sha256(f"{found[-1]} {diff}".encode()).hexdigest()
        found.append(diff)
    return found


def folder_of(root: str, chain: str) -> str:
    """Gives the store's folder of a layer. Raises NodeError for what is no digest."""
    if not DIGEST.match(chain):
        raise NodeError(f"{chain[:80]!r} is not a digest", "image_store")
    return os.path.join(root, "image", DRIVER, "layerdb", "sha256", chain[7:])


def present(root: str, diff_ids: list[str]) -> int:
    """Gives how many of an image's layers, counted from the lowest, the store has.

    docker load looks a layer up by its chain id and does not read it from the archive then.
    """
    count = 0
    for chain in chains(diff_ids):
        folder = folder_of(root, chain)
        if not all(
            os.path.exists(os.path.join(folder, n)) for n in ("cache-id", "tar-split.json.gz")
        ):
            break
        count += 1
    return count


def raw_config(root: str, image_id: str) -> bytes:
    """Gives an image's config as it is stored, whose sha256 is the image's id."""
    if not DIGEST.match(image_id):
        raise NodeError(f"{image_id[:80]!r} is not an image id", "image_store")
    path = os.path.join(root, "image", DRIVER, "imagedb", "content", "sha256", image_id[7:])
    with open(path, "rb") as file:
        raw = file.read(8 << 20)
    if "sha256:" + hashlib.sha256(raw).hexdigest() != image_id:
        raise NodeError(f"{path} is damaged", "image_store", "pull or load the image again")
    return raw


class Layer:
    """One layer of the store. `diff_id` is what its tar must hash to."""

    def __init__(self, root: str, chain: str, diff_id: str) -> None:
        self.diff_id = diff_id
        folder = folder_of(root, chain)
        self._split = os.path.join(folder, "tar-split.json.gz")
        with open(os.path.join(folder, "cache-id"), encoding="ascii") as file:
            cache = file.read().strip()
        if not _CACHE.match(cache):
            raise NodeError(f"{folder}/cache-id is damaged", "image_store")
        self._files = os.path.realpath(os.path.join(root, DRIVER, cache, "diff"))
        self._safe: dict[str, str] = {}

    def _entries(self) -> Iterator[tuple[int, Any]]:
        """Gives for each part of the tar its length, and its bytes in base64 or a file's entry."""
        with gzip.open(self._split, "rb") as lines:
            for line in lines:
                entry = json.loads(line)
                if entry["type"] == 2:
                    text = entry["payload"]
                    yield len(text) // 4 * 3 - text[-2:].count("="), text
                elif entry.get("size"):
                    yield int(entry["size"]), entry

    def size(self) -> int:
        """Gives the length of the layer's tar in bytes; reads no file of it."""
        return sum(length for length, _ in self._entries())

    def blocks(self, offset: int = 0) -> Iterator[memoryview]:
        """Gives the layer's tar from `offset` on, in blocks of BLOCK bytes (the last is shorter).

        A block holds until the next one is asked for. Raises NodeError when a file is not as long
        as the store says, or leads out of the layer.
        """
        # Filled in place: every copy of the bytes costs as much as reading them.
        block = memoryview(bytearray(BLOCK))
        full = 0
        for length, part in self._entries():
            if offset >= length:
                offset -= length
                continue
            left = length - offset
            with self._reader(part, length, offset) as read_into:
                while left:
                    count = read_into(block[full : min(BLOCK, full + left)])
                    if not count:
                        raise NodeError(
                            f"a file of layer {self.diff_id[:19]} is cut", "image_store"
                        )
                    left -= count
                    full += count
                    if full == BLOCK:
                        yield block
                        full = 0
            offset = 0
        if full:
            yield block[:full]

    @contextlib.contextmanager
    def _reader(self, part: Any, length: int, offset: int) -> Iterator[Reader]:
        """Gives what reads a part of the tar from `offset` on into a buffer."""
        if isinstance(part, str):
            yield io.BytesIO(base64.b64decode(part)[offset:]).readinto
            return
        fd = os.open(self._path(part), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != length:
                raise NodeError(f"a file of layer {self.diff_id[:19]} changed", "image_store")
            if offset:
                os.lseek(fd, offset, os.SEEK_SET)
            yield lambda into: os.readv(fd, [into])
        finally:
            os.close(fd)

    def _path(self, entry: Any) -> bytes:
        """Gives the file of an entry; one that leads out of the layer's folder is refused."""
        raw = entry.get("name_raw")
        name = base64.b64decode(raw) if raw else str(entry["name"]).encode("utf-8")
        folder, base = os.path.split(os.path.normpath(b"/" + name))
        known = os.fsdecode(folder)
        if known not in self._safe:
            real = os.path.realpath(self._files + known)
            if real != self._files and not real.startswith(self._files + "/"):
                raise NodeError(f"{known!r} leads out of layer {self.diff_id[:19]}", "image_store")
            self._safe[known] = real
        return os.path.join(os.fsencode(self._safe[known]), base)
