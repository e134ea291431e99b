"""A ``docker load`` archive from a root tree, in one pass: same tree in, same bytes out."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

EPOCH = 1767225600  # 2026-01-01, the date of everything in the image
BLOCK = tarfile.BLOCKSIZE


class Hashing(io.RawIOBase):
    """A write-only stream that counts and hashes what passes."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any, /) -> int:
        """Pass the bytes on."""
        self._digest.update(data)
        self.size += len(data)
        return self._stream.write(data)

    def hexdigest(self) -> str:
        """SHA-256 of all that passed."""
        return self._digest.hexdigest()


def members(root: Path) -> Iterator[Path]:
    """Everything below root, folders before their content, in a fixed order."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        here = Path(folder)
        for name in sorted(folders + files):
            yield here / name


def header(root: Path, path: Path, seen: dict[tuple[int, int], str]) -> tarfile.TarInfo | None:
    """The tar header of one path; None for what an image cannot hold (sockets, devices)."""
    info = path.lstat()
    entry = tarfile.TarInfo(str(path.relative_to(root)))
    entry.mode = stat.S_IMODE(info.st_mode)
    entry.uid, entry.gid, entry.mtime = info.st_uid, info.st_gid, EPOCH
    if stat.S_ISLNK(info.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
    elif stat.S_ISDIR(info.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISREG(info.st_mode):
        first = seen.setdefault((info.st_dev, info.st_ino), entry.name)
        if first != entry.name:
            entry.type, entry.linkname = tarfile.LNKTYPE, first
        else:
            entry.size = info.st_size
    else:
        return None
    return entry


def write_layer(root: Path, stream: BinaryIO, skip: Callable[[str], bool]) -> Hashing:
    """Write root as a tar layer; ``skip`` says which relative paths stay out."""
    hashing = Hashing(stream)
    seen: dict[tuple[int, int], str] = {}
    with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for path in members(root):
            if skip(str(path.relative_to(root))):
                continue
            entry = header(root, path, seen)
            if entry is None:
                continue
            if entry.type == tarfile.REGTYPE and entry.size:
                with path.open("rb") as content:
                    tar.addfile(entry, content)
            else:
                tar.addfile(entry)
    return hashing


def image_config(diff_id: str, environment: list[str]) -> bytes:
    """The image's config document; its SHA-256 is the image's id."""
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Env": environment, "Cmd": ["bash"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
            "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "rigbook lab"}],
        },
        sort_keys=True,
    ).encode()


def write_archive(
    root: Path, target: Path, tag: str, environment: list[str], skip: Callable[[str], bool]
) -> str:
    """Write the archive of a one-layer image and give the image's id (sha256:...)."""
    with target.open("wb") as stream:
        # the layer's size is known only after it is written: its header follows then
        stream.write(bytes(BLOCK))
        layer = write_layer(root, stream, skip)
        stream.write(bytes(-layer.size % BLOCK))
        config = image_config(layer.hexdigest(), environment)
        image_id = hashlib.sha256(config).hexdigest()
        manifest = [{"Config": f"{image_id}.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar:
            for name, data in (
                (f"{image_id}.json", config),
                ("manifest.json", json.dumps(manifest).encode()),
            ):
                tar.addfile(_plain_file(name, len(data)), io.BytesIO(data))
        stream.seek(0)
        stream.write(_plain_file("layer.tar", layer.size).tobuf(tarfile.GNU_FORMAT))
    return f"sha256:{image_id}"


def _plain_file(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, EPOCH, 0o644
    return entry
