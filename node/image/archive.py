"""An image as one tar that docker load takes, in the form that a backup's payload has.

Every member's sha256 is known before it is read: docker and containerd name layers by it. So a file
that somebody edited in the store ends the backup, and is not kept as part of it.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from typing import Any

from node.backup.walk import FILE, FOLDER, Member
from node.core.errors import NodeError, io_reason
from node.rules.oci_layout import BLOBS, blob, digest_of, layout
from node.transfer import server

_TYPES = {FILE: tarfile.REGTYPE, FOLDER: tarfile.DIRTYPE}


class Archive:
    """An image that a host gives: of docker's own store its layers' tars, of the containerd store
    the blobs as they came and the documents that make its digest."""

    def __init__(self, source: server.Source, layers: list[str]) -> None:
        """`layers`: the image's diff ids. Raises NodeError, OSError."""
        said = source.listing()
        self._source = source
        if "config" in said:
            documents: list[bytes] = []
            config = base64.b64decode(str(said["config"]))
            rows = [(diff, source.size(n)) for n, diff in enumerate(layers)]
            names = layers
        else:
            documents = [base64.b64decode(str(row)) for row in said["documents"]]
            config = documents[-1]
            rows = [(str(name), int(size)) for name, size in said["blobs"]]
            manifest: Any = json.loads(documents[-2])
            names = [str(row["digest"]) for row in manifest["layers"]]
        # a layer that stands twice in an image is one member
        self._blobs = {
            name: (n, size) for n, (name, size) in reversed([*enumerate(rows)])
        }  # fmt: skip
        # the digest by which a registry's name may name it, "" of an image of docker's own store
        self.digest = digest_of(documents[0]) if documents else ""
        says = [{"Config": blob(digest_of(config)), "RepoTags": None,
                 "Layers": [blob(name) for name in names]}]  # fmt: skip
        self._small = {
            **layout(documents),
            blob(digest_of(config)): config,
            "manifest.json": json.dumps(says).encode(),
        }
        self.size = sum(row.size for row in self.members())

    def members(self) -> Iterator[Member]:
        """Gives the members in their order, with the sha256 that their bytes are to have."""
        for path in (".", *_folders(BLOBS)):
            yield Member(path, FOLDER, 0o755, 0, 0, 0, 0, "", {})
        for path, raw in self._small.items():
            yield _file(path, len(raw), digest_of(raw))
        for name, (_, size) in self._layers():
            yield _file(blob(name), size, name)

    def _layers(self) -> list[tuple[str, tuple[int, int]]]:
        return sorted(self._blobs.items(), key=lambda row: row[1])

    def pieces(self) -> Iterator[bytes]:
        """Gives the tar. Raises NodeError (`image_store`) when the store changes meanwhile."""
        try:
            yield from self._pieces()
        except OSError as error:
            raise NodeError(
                f"docker's store changed while it was read: {error.filename or ''} "
                f"{io_reason(error)}", "image_store", "run it again",
            ) from None  # fmt: skip

    def _pieces(self) -> Iterator[bytes]:
        members = self.members()
        for row in members:
            if row.type == FOLDER:
                yield _header(row)
                continue
            raw = self._small.get(row.path)
            if raw is None:
                break
            yield _header(row) + raw + bytes(-len(raw) % tarfile.BLOCKSIZE)
        for name, (item, size) in self._layers():
            yield _header(_file(blob(name), size, name))
            for block in self._source.blocks(item, 0):
                yield bytes(block)
            yield bytes(-size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _folders(path: str) -> list[str]:
    """Gives a folder and those above it, the uppermost first."""
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _file(path: str, size: int, digest: str) -> Member:
    return Member(path, FILE, 0o644, 0, 0, size, 0, "", {}, digest[7:])


def _header(row: Member) -> bytes:
    info = tarfile.TarInfo(row.path)
    info.type, info.mode, info.size = _TYPES[row.type], row.mode, row.size
    return info.tobuf(tarfile.PAX_FORMAT)
