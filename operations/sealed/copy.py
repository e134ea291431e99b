"""A backup into sealed pieces, and back: piece by piece, so that what was cut off goes on.

PLACE/rigbook/HOSTNAME/ID/ holds FILE.00001.age and so on, manifest.json.age last, and SHA256SUMS,
which `sha256sum -c` reads. By hand: age -d each piece, cat, zstd -d, tar.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from operations.change.node_call import StepFailed
from operations.sealed import age
from operations.sealed.places import Place

PIECE = 32 << 20
SUMS, MANIFEST, PACK = "SHA256SUMS", "manifest.json", "files.tar"
Json = dict[str, Any]
# path on the node, offset, number of bytes
_PLAIN = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,254}\Z")
Read = Callable[[str, int, int], bytes]
Write = Callable[[str, int, bytes], None]
Told = Callable[[int], None]


@dataclass(frozen=True)
class Sent:
    """What came of a copy: whether anything was written, its bytes, those of an earlier run."""

    made: bool
    bytes: int
    kept: int


def plain(name: object) -> str:
    """The name of a host, a backup or a file of it that a node or a copy gives. StepFailed where it
    is none: it becomes a path on this machine, and on the node, where root writes it.
    """
    if isinstance(name, str) and _PLAIN.match(name):
        return name
    raise StepFailed(f"{name!r:.120} is no name of a backup or its files; nothing was written")


def folder_of(host: str, backup: str = "") -> str:
    """Where a host's copy lies below a place; without an id, all of them. StepFailed."""
    for part in (*host.removeprefix("@").split("/"), *([backup] if backup else [])):
        plain(part)
    return f"rigbook/{host}/{backup}".rstrip("/")


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


class _Sums:
    """What was written and read back so far; the file that `sha256sum -c` reads."""

    def __init__(self, place: Place, folder: str, head: str) -> None:
        self._place, self._path, self._head = place, f"{folder}/{SUMS}", head
        said = (place.read(self._path) or b"").decode("utf-8", "replace").splitlines()
        if said and said[0] != head:
            raise StepFailed(f"{folder} holds another copy ({said[0][2:120]}): remove that folder")
        rows = (line.partition("  ") for line in said[1:])
        self._rows = {name: digest for digest, _, name in rows}

    def holds(self, folder: str, name: str) -> bool:
        """Whether a piece lies there as it was written; it is read."""
        if name not in self._rows:
            return False
        raw = self._place.read(f"{folder}/{name}")
        return raw is not None and _sha256(raw) == self._rows[name]

    def add(self, folder: str, name: str, sealed: bytes) -> None:
        """Write a piece, read it back, and note it. StepFailed where it is not what was written."""
        self._place.write(f"{folder}/{name}", sealed)
        if self._place.read(f"{folder}/{name}") != sealed:
            raise StepFailed(f"{folder}/{name} is not as it was written: look at that disk")
        self._rows[name] = _sha256(sealed)
        lines = [self._head, *(f"{digest}  {name}" for name, digest in self._rows.items())]
        self._place.write(self._path, "\n".join([*lines, ""]).encode())


def send(place: Place, listed: Json, read: Read, recipient: str, told: Told) -> Sent:
    """Bring a backup, as node's `tree pieces` lists it, to a place, sealed for `recipient`.

    What lies there from an earlier call is read back and stays. StepFailed.
    """
    backup, pack = str(listed["backup"]), base64.b64decode(listed["pack"])
    folder = folder_of(str(listed["host"]), backup)
    sums = _Sums(place, folder, f"# {backup} for {recipient} in pieces of {PIECE} bytes")
    made, total, kept = False, 0, 0
    for name, expected, size, clear in _pieces(listed, pack, read):
        total += size
        if sums.holds(folder, name):
            kept += size
        else:
            raw = clear()
            if _sha256(raw) != expected:
                raise StepFailed(f"{name}: what came from the node is not what it said: again")
            sums.add(folder, name, age.seal(raw, recipient))
            made = True
        told(size)
    files = [{key: row[key] for key in ("name", "bytes", "pieces")} for row in listed["files"]]
    document = {"manifest": listed["manifest"], "piece": PIECE, "files": files,
                "pack": [_sha256(raw) for raw in _cut(pack)]}  # fmt: skip
    if made or not sums.holds(folder, f"{MANIFEST}.age"):
        sums.add(folder, f"{MANIFEST}.age", age.seal(json.dumps(document).encode(), recipient))
        made = True
    return Sent(made, total, kept if made else 0)


def _pieces(
    listed: Json, pack: bytes, read: Read
) -> Iterator[tuple[str, str, int, Callable[[], bytes]]]:
    """Each piece's name in the place, sha256, size, and how to get it."""
    for row in listed["files"]:
        for number, expected in enumerate(row["pieces"]):
            at = number * PIECE
            size = min(PIECE, row["bytes"] - at)
            clear = partial(read, row["path"], at, size)
            yield f"{plain(row['name'])}.{number + 1:05}.age", expected, size, clear
    for number, raw in enumerate(_cut(pack)):
        yield f"{PACK}.{number + 1:05}.age", _sha256(raw), len(raw), partial(bytes, raw)


def _cut(raw: bytes) -> list[bytes]:
    return [raw[at : at + PIECE] for at in range(0, len(raw), PIECE)]


def document_of(place: Place, folder: str, identity: str) -> Json | None:
    """What the manifest of a copy says, opened; None where there is none. StepFailed."""
    sealed = place.read(f"{folder}/{MANIFEST}.age")
    if sealed is None:
        return None
    found: Json = json.loads(age.unseal(sealed, identity, f"{folder}/{MANIFEST}.age"))
    return found


def bring(
    place: Place,
    folder: str,
    document: Json,
    identity: str,
    have: dict[str, int],
    write: Write,
    told: Told,
) -> bytes:
    """Bring the pieces of a copy to the node, but for what it has; gives its files.tar. StepFailed.

    `have`: bytes by file, from a call that was cut off. `document`: as `document_of` gives it.
    """
    piece = int(document["piece"])
    for row in document["files"]:
        plain(row["name"])

    def opened(name: str, number: int, expected: str) -> bytes:
        path = f"{folder}/{name}.{number + 1:05}.age"
        sealed = place.read(path)
        if sealed is None:
            raise StepFailed(f"{path} is missing in the copy")
        clear = age.unseal(sealed, identity, path)
        if _sha256(clear) != expected:
            raise StepFailed(f"{path} is not what was sealed there")
        return clear

    for row in document["files"]:
        there = min(have.get(row["name"], 0), row["bytes"])
        for number, expected in enumerate(row["pieces"]):
            end = min((number + 1) * piece, row["bytes"])
            if end > there:
                write(row["name"], number * piece, opened(row["name"], number, expected))
            told(end - number * piece)
        if not row["pieces"]:
            write(row["name"], 0, b"")
    return b"".join(opened(PACK, n, expected) for n, expected in enumerate(document["pack"]))
