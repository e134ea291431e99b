"""A docker archive on this machine, read before any of it goes to a node.

What goes on is made anew: the config and the layers that the manifest names, plain files under
plain names, and no tag. Whatever else an archive holds stays here.
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
from typing import Any

from facts.rignode import pack
from node.rules.patterns import DIGEST

_CHUNK = 1 << 20
_MAX_CONFIG = 8 << 20


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

    @property
    def image_id(self) -> str:
        """The sha256 of the config."""
        return "sha256:" + hashlib.sha256(self.config).hexdigest()

    @property
    def config_sha256(self) -> str:
        """The hash of what decides how the image runs, as a node's snapshot has it."""
        return pack.config_sha256(json.loads(self.config))

    def chunks(self) -> Iterator[bytes]:
        """The archive as docker load gets it."""
        names = [f"{diff[7:]}/layer.tar" for diff in self.diff_ids]
        config = f"{self.image_id[7:]}.json"
        manifest = [{"Config": config, "RepoTags": None, "Layers": names}]
        yield _member(config, self.config)
        yield _member("manifest.json", json.dumps(manifest).encode())
        with self.path.open("rb") as file:
            for name, (offset, length) in dict(zip(names, self.layers, strict=True)).items():
                yield _head(name, length)
                file.seek(offset)
                left = length
                while left:
                    chunk = file.read(min(left, _CHUNK))
                    if not chunk:
                        raise BadArchive(f"{self.path} became shorter while it was read")
                    left -= len(chunk)
                    yield chunk
                yield bytes(-length % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)


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
    if len(names) != len(diff_ids):
        raise BadArchive(f"{path} names {len(names)} layers, its config {len(diff_ids)}")
    places = tuple(_place(members, name) for name in names)
    return Archive(path, config, diff_ids, str(said.get("architecture", "")), places)


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
