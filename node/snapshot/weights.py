"""The weights folders that the request names."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat

from node.core.errors import CannotRead, Json
from node.core.parallel import each
from node.files import cold_read
from node.weights import beside, hub_cache, manifest, model_header

MAX_FILES = 20000
MAX_INDEX = 64 << 20
MAX_HEADER = 100_000_000
# a vocabulary of a million words is half of it
MAX_GGUF_HEADER = 64 << 20
_INDEX = ".safetensors.index.json"
_SUFFIX = ".safetensors"
_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]')


def _inside(folder: str, path: str) -> bool:
    """Gives True when a path, links resolved, stays in the folder (links resolved)."""
    return os.path.realpath(path).startswith(folder.rstrip("/") + "/")


def _names(folder: str) -> tuple[list[str], int]:
    """Gives the regular files of a folder, sorted, and how many are links into the blobs of the
    Hugging Face cache that it is a snapshot of. Another link that leads out is not followed.
    """
    found: list[str] = []
    cache, linked = hub_cache.root_of(folder) or folder, 0
    for here, folders, names in os.walk(folder):
        # our own folder beside the weights: parts, and what a change replaced
        folders[:] = [name for name in folders if name != manifest.OWN or here != folder]
        for name in names:
            path = os.path.join(here, name)
            if os.path.isfile(path) and (not os.path.islink(path) or _inside(cache, path)):
                found.append(os.path.relpath(path, folder))
                linked += not _inside(folder, path)
        if len(found) > MAX_FILES:
            raise CannotRead(f"{folder} holds more than {MAX_FILES} files: not a weights folder")
    return sorted(found), linked


def _file(folder: str, name: str, deep: bool, known: Json) -> Json:
    """Gives one file: size, first 16 bytes, the hash of its ends, what its header says, its sha256
    when deep or when it is known from an earlier reading."""
    with open(os.path.join(folder, name), "rb") as file:
        info = os.fstat(file.fileno())
        size = info.st_size
        probe = manifest.probe_of(file.fileno(), size)
        magic = file.read(16)
        digest = manifest.hash_that_holds(known.get(name, {}), info)
        if deep:
            sha, read = hashlib.sha256(magic), len(magic)
            with cold_read.Passing(file.fileno()) as passing:
                for chunk in iter(lambda: file.read(1 << 22), b""):
                    sha.update(chunk)
                    read += len(chunk)
                    passing.upto(read)
            digest = sha.hexdigest()
        says, broken = None, None
        if name.endswith(_SUFFIX):
            says = _header_says(file.fileno(), magic, size)
        elif magic.startswith(b"GGUF"):
            try:
                says = model_header.gguf(file, size, MAX_GGUF_HEADER)[1]
            except model_header.BrokenModel as error:
                broken = str(error)
    row = {"name": name, "size": size, "magic": magic.hex(), "sha256": digest, "probe": probe}
    return {**row, "header_says": says, "broken": broken}


def _header_says(fd: int, magic: bytes, size: int) -> int | None:
    """Gives the length that a safetensors header gives its file, or None where it gives none.

    8 bytes of length, a JSON header, then the tensors: the last one's end is the file's.
    """
    length = int.from_bytes(magic[:8], "little")
    if len(magic) < 10 or not 2 <= length <= MAX_HEADER or magic[8:9] != b"{":
        return None
    header = os.pread(fd, length, 8) if 8 + length <= size else b""
    ends = [int(end) for end in _OFFSETS.findall(header)]
    return 8 + length + max(ends) if ends else (8 + length if size < 8 + length else None)


def _missing(folder: str, names: list[str]) -> list[str]:
    """Gives the shards that an index names and the folder lacks, sorted."""
    there, missing = set(names), set()
    for index in (name for name in names if name.endswith(_INDEX)):
        for shard in _shards(os.path.join(folder, index)):
            relative = os.path.normpath(os.path.join(os.path.dirname(index), shard))
            if relative not in there:
                missing.add(relative)
    return sorted(missing)


def _shards(index: str) -> set[str]:
    """Gives the file names of an index's weight_map. Raises CannotRead when it is damaged."""
    try:
        if os.path.getsize(index) > MAX_INDEX:
            raise CannotRead(f"{index} is larger than {MAX_INDEX >> 20} MiB")
        with open(index, encoding="utf-8") as file:
            return {str(shard) for shard in json.load(file)["weight_map"].values()}
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CannotRead(f"{index} is not a safetensors index") from None


def _one(path: str, deep: bool) -> Json:
    """Gives one weights folder, or one file as a folder of one."""
    found = hub_cache.snapshot_of(path)
    where: Json = {"path": path, "folder": found}
    try:
        is_file = stat.S_ISREG(os.stat(found).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return {**where, "exists": False, "files": [], "missing_shards": [],
                "incomplete": None, "displaced": []}  # fmt: skip
    real = os.path.realpath(found)
    folder, names = os.path.split(real) if is_file else (real, "")
    listed, linked = ([names], 0) if is_file else _names(real)
    jobs: list[tuple[str, str]] = [(folder, name) for name in listed]
    known = manifest.Folder(real).known()
    files = each(lambda job: _file(job[0], job[1], deep, known), jobs, min(4, os.cpu_count() or 1))
    missing = [] if is_file else _missing(folder, listed)
    return {**where, "exists": True, "linked": linked, "files": files, "missing_shards": missing,
            "incomplete": beside.incomplete(real), "displaced": beside.displaced(real)}  # fmt: skip


def read(paths: list[str], deep: bool) -> list[Json]:
    """Gives the named weights, in their order; sha256 only when `deep`."""
    return [_one(path, deep) for path in paths]
