"""Images of the containerd store, read out of containerd's content store without docker.

A blob is a file there that its sha256 names: an index, a manifest, a config, or a layer as it came
from its registry. Given on as they are, they make the same image under the same digest.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from node.core.errors import Json, NodeError
from node.files import cold_read
from node.rules.oci_layout import digest_of
from node.rules.patterns import DIGEST
from node.transfer import server
from node.transfer.block import BLOCK

_STORE = "io.containerd.content.v1.content/blobs/sha256"
MAX_DOCUMENT = 8 << 20
# an index may name an index; no image is deeper
_DEEPEST = 4


class Content(server.Source):
    """An image of the containerd store: its documents in the listing, its layers as items."""

    def __init__(self, root: str, want: Json) -> None:
        """`want`: the image's id, which is the digest of its index or manifest, and its layers.

        Raises NodeError (`image_store`): no such image, or a part of it is not in the store.
        """
        self._folder = os.path.join(root, _STORE)
        documents = self._documents(want["id"], want["layers"], 0)
        if documents is None:
            raise NodeError(
                f"containerd's store has no image {want['id'][:19]} of these layers",
                "image_store", "docker image inspect it; or give it from another node: from=NODE",
            )  # fmt: skip
        self._listed = [base64.b64encode(raw).decode("ascii") for raw in documents]
        # a layer that is in the image twice is one blob
        rows = {str(row["digest"]): int(row["size"]) for row in json.loads(documents[-2])["layers"]}
        self._blobs = list(rows.items())
        for digest, size in self._blobs:
            self._require(digest, size)

    def _path(self, digest: str) -> str:
        if not DIGEST.match(digest):
            raise NodeError(f"{digest[:80]!r} is not a digest", "image_store")
        return os.path.join(self._folder, digest[7:])

    def _require(self, digest: str, size: int) -> None:
        try:
            there = os.lstat(self._path(digest)).st_size
        except FileNotFoundError:
            there = -1
        if there != size:
            raise NodeError(
                f"layer {digest[:19]} is not whole in {self._folder}: containerd leaves out a "
                "layer that another image had unpacked already",
                "image_store", "give it from another node: from=NODE; or pull it here again",
            )  # fmt: skip

    def _document(self, digest: str) -> bytes | None:
        """Gives a small blob, checked; None where the store does not have it."""
        path = self._path(digest)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            raw = file.read(MAX_DOCUMENT)
        if digest_of(raw) != digest:
            raise NodeError(f"{path} is damaged", "image_store", "pull the image again")
        return raw

    def _documents(self, digest: str, layers: list[str], depth: int) -> list[bytes] | None:
        """Gives what leads to the image of these layers, its manifest and config the last two."""
        raw = self._document(digest)
        if raw is None or depth > _DEEPEST:
            return None
        said: Any = json.loads(raw)
        for row in said.get("manifests") or []:
            below = self._documents(str(row["digest"]), layers, depth + 1)
            if below is not None:
                return [raw, *below]
        if "layers" not in said:
            return None
        config = self._document(str(said["config"]["digest"]))
        if config is None or _diff_ids(config) != layers:
            return None
        return [raw, config]

    def listing(self) -> Json:
        """Gives the documents, the one that the image's digest names first, and the layers' blobs
        with their sizes."""
        return {"documents": self._listed, "blobs": [list(row) for row in self._blobs]}

    def size(self, item: int) -> int:
        """Gives the length of a layer's blob."""
        return self._blobs[item][1]

    def blocks(self, item: int, offset: int) -> Iterator[bytes]:
        """Gives a layer's blob; what was read does not stay in the page cache."""
        fd = os.open(self._path(self._blobs[item][0]), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as file, cold_read.Passing(fd) as passing:
            file.seek(offset)
            for chunk in iter(lambda: file.read(BLOCK), b""):
                offset += len(chunk)
                yield chunk
                passing.upto(offset)

    def passed(self, item: int, sha256: str) -> None:
        """Its digest is known."""

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives the sha256 of a layer's blob."""
        return self._blobs[item][0][7:]


def _diff_ids(config: bytes) -> Any:
    said: Any = json.loads(config)
    return (said.get("rootfs") or {}).get("diff_ids") if isinstance(said, dict) else None
