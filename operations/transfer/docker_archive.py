"""A docker archive on this machine, read before any of it goes to a node.

What goes on is made anew: the config and the layers that the manifest names, plain files under
plain names, and no tag. Where the archive has the documents of a registry's image (docker save of a
containerd store), they go on with it, so that its digest stays. Whatever else it holds stays here.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from facts.rignode import pack
from node.rules.oci_layout import blob, digest_of, layout
from node.rules.patterns import DIGEST

_CHUNK = 1 << 20
_MAX_CONFIG = 8 << 20
# an index may name an index; no image is deeper
_DEEPEST = 4


class BadArchive(Exception):
    """The file is no archive of one image; the text is the reason, for the operator."""


@dataclass(frozen=True)
class Archive:
    """What an archive holds: the image's config, its diff ids, and where its layers lie."""

    path: Path
    config: bytes
    diff_ids: tuple[str, ...]
    arch: str
    layers: tuple[tuple[int, int], ...]  # offset and length in the file
    # the document that the image's digest names, down to its manifest; none in the older form
    documents: tuple[bytes, ...] = ()

    @property
    def digest(self) -> str | None:
        """The digest by which a registry's name may name it; None in the older form."""
        return digest_of(self.documents[0]) if self.documents else None

    def check(self) -> None:
        """Reads every layer. BadArchive where one is not what its digest says."""
        blobs = _blobs(self.documents[-1]) if self.documents else self.diff_ids
        with self.path.open("rb") as file:
            for wanted, (offset, length) in zip(blobs, self.layers, strict=True):
                found = hashlib.sha256()
                for chunk in _part(file, self.path, offset, length):
                    found.update(chunk)
                if f"sha256:{found.hexdigest()}" != wanted:
                    raise BadArchive(f"{self.path}: layer {wanted[:19]} is damaged")

    @property
    def image_id(self) -> str:
        """The sha256 of the config."""
        return digest_of(self.config)

    @property
    def config_sha256(self) -> str:
        """The hash of what decides how the image runs, as a node's snapshot has it."""
        return pack.config_sha256(json.loads(self.config))

    def chunks(self) -> Iterator[bytes]:
        """The archive as docker load gets it."""
        names = [f"{diff[7:]}/layer.tar" for diff in self.diff_ids]
        config = f"{self.image_id[7:]}.json"
        if self.documents:
            names = [blob(each) for each in _blobs(self.documents[-1])]
            config = blob(self.image_id)
            for name, raw in layout(self.documents).items():
                yield _member(name, raw)
        manifest = [{"Config": config, "RepoTags": None, "Layers": names}]
        yield _member(config, self.config)
        yield _member("manifest.json", json.dumps(manifest).encode())
        with self.path.open("rb") as file:
            for name, (offset, length) in dict(zip(names, self.layers, strict=True)).items():
                yield _head(name, length)
                yield from _part(file, self.path, offset, length)
                yield bytes(-length % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _part(file: BinaryIO, path: Path, offset: int, left: int) -> Iterator[bytes]:
    file.seek(offset)
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise BadArchive(f"{path} became shorter while it was read")
        left -= len(chunk)
        yield chunk


def _blobs(manifest: bytes) -> tuple[str, ...]:
    return tuple(str(row["digest"]) for row in json.loads(manifest)["layers"])


def _head(name: str, length: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = length, 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


def _member(name: str, raw: bytes) -> bytes:
    return _head(name, len(raw)) + raw + bytes(-len(raw) % tarfile.BLOCKSIZE)


def read(path: Path) -> Archive:
    """The archive at `path`. BadArchive: cut, more than one image, a missing or odd member."""
    try:
        with tarfile.open(path, "r:") as tar:
            members = {_plain(info.name): info for info in tar}
            return _archive(path, tar, members)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadArchive(f"{path} cannot be read as a docker archive: {error}") from None
    # RecursionError: json that is nested some hundred thousand deep
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadArchive(f"{path} is no docker archive: {type(error).__name__} {error}") from None


def _plain(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        raise BadArchive(f"the archive has a member that leads out of it: {name[:80]!r}")
    return posixpath.normpath(name)


def _archive(path: Path, tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo]) -> Archive:
    images: Any = json.loads(_small(tar, members, "manifest.json"))
    if not isinstance(images, list) or len(images) != 1:
        raise BadArchive(f"{path} holds {len(images)} images; allowed: one")
    config = _small(tar, members, str(images[0]["Config"]))
    said = json.loads(config)
    diff_ids = tuple(str(diff) for diff in said["rootfs"]["diff_ids"])
    for diff in diff_ids:
        # Paths are made of it, and docker unpacks them as root.
        if not DIGEST.fullmatch(diff):
            raise BadArchive(f"{path} has a layer {diff[:80]!r}, which is no digest")
    names = [str(name) for name in images[0]["Layers"]]
    arch = str(said.get("architecture", ""))
    documents: tuple[bytes, ...] = ()
    if "index.json" in members:
        rows = json.loads(_small(tar, members, "index.json"))["manifests"]
        documents = _documents(tar, members, rows, digest_of(config), 0)
    if documents:
        names = [blob(each) for each in _blobs(documents[-1])]
    if len(names) != len(diff_ids):
        raise BadArchive(f"{path} names {len(names)} layers, its config {len(diff_ids)}")
    places = tuple(_place(members, name) for name in names)
    return Archive(path, config, diff_ids, arch, places, documents)


def _documents(
    tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], rows: Any, config: str, depth: int
) -> tuple[bytes, ...]:
    """What leads to the image of this config; nothing where no row does."""
    for row in rows if depth < _DEEPEST else ():
        name = blob(str(row["digest"]))
        if not DIGEST.fullmatch(str(row["digest"])) or _plain(name) not in members:
            continue  # of another processor's image the archive has no content
        raw = _small(tar, members, name)
        if digest_of(raw) != row["digest"]:
            raise BadArchive(f"{name} is not what its name says")
        said = json.loads(raw)
        if "layers" in said and said["config"]["digest"] == config:
            # paths are made of them
            if not all(map(DIGEST.fullmatch, _blobs(raw))):
                raise BadArchive(f"{name} names a layer by no digest")
            return (raw,)
        below = _documents(tar, members, said.get("manifests") or [], config, depth + 1)
        if below:
            return (raw, *below)
    return ()


def _found(members: dict[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    info = members.get(_plain(name))
    # docker save writes a layer that stands twice as a link to its first place
    if info is not None and info.issym():
        info = members.get(_plain(posixpath.normpath(posixpath.join(
            posixpath.dirname(name), info.linkname))))  # fmt: skip
    if info is None or not info.isreg():
        raise BadArchive(f"the archive lacks {name[:80]!r}, or it is no plain file")
    return info


def _small(tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str) -> bytes:
    info = _found(members, name)
    file = tar.extractfile(info)
    if file is None or info.size > _MAX_CONFIG:
        raise BadArchive(f"{name[:80]!r} is larger than {_MAX_CONFIG >> 20} MiB")
    return io.BytesIO(file.read()).getvalue()


def _place(members: dict[str, tarfile.TarInfo], name: str) -> tuple[int, int]:
    info = _found(members, name)
    return info.offset_data, info.size
