"""Read the members of a tar stream as they pass, and refuse what a backup never holds.

Only the form that we write is understood (ustar and pax headers, holes as GNU tar's form 0.1);
everything else is an error, so that tar can never read a stream differently from us.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

from node.backup.walk import FILE, FOLDER, LINK, NS, SYMLINK, Member
from node.core.errors import NodeError

BLOCK = 512
# of a file with many holes: each takes some 20 bytes
MAX_PAX = 16 << 20
_KNOWN = (FILE, LINK, SYMLINK, FOLDER)
# name, mode, uid, gid, size, mtime, checksum, type, link, magic, version, prefix
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s2s80x155s12x")
_BLANK = sum(b" " * 8)
_XATTR = "SCHILY.xattr."
_SPARSE = "GNU.sparse."
_HOLES = ("map", "name", "numblocks", "size")
_ZEROS = bytes(1 << 20)
# where bytes lie in a file, and how many
Regions = list[tuple[int, int]]
_KINDS = {"3": "a device", "4": "a device", "6": "a pipe", "7": "a contiguous file",
          "L": "a GNU long name", "K": "a GNU long link", "S": "a sparse file",
          "g": "a global header"}  # fmt: skip


def refused(text: str) -> NodeError:
    """Gives the error for a stream that must not be unpacked."""
    return NodeError(f"the payload is not what the manifest says: {text}", "backup_damaged",
                     "take another one: rignode tree list")  # fmt: skip


def _text(raw: bytes) -> str:
    """Gives a header's text field, as os.fsdecode would."""
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(raw: bytes) -> int:
    """Gives a number of a header: octal, or base 256."""
    if raw[:1] and raw[0] & 0x80:
        return int.from_bytes(bytes([raw[0] & 0x7F]) + raw[1:], "big")
    digits = raw.rstrip(b" \0").lstrip(b" ") or b"0"
    if not digits.isdigit():
        raise ValueError("a number is none")
    return int(digits, 8)


def _pax(raw: bytes) -> dict[str, bytes]:
    """Gives the records of a pax header. Raises ValueError when it is not one."""
    found: dict[str, bytes] = {}
    while raw:
        length = int(raw[: raw.index(b" ")])
        record = raw[:length]
        if len(record) != length or not record.endswith(b"\n"):
            raise ValueError("a record is cut")
        name, _, value = record[record.index(b" ") + 1 : -1].partition(b"=")
        key = name.decode("utf-8", "surrogateescape")
        if key in found:
            raise ValueError("a record stands twice")
        found[key] = value
        raw = raw[length:]
    return found


def _digits(text: str) -> int:
    """Gives a number of a pax record; int() would take more than tar does."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError("a number is none")
    return int(text)


def _nanoseconds(text: str) -> int:
    """Gives a pax record's time: decimal seconds, perhaps before 1970."""
    whole, _, part = text.removeprefix("-").partition(".")
    number = _digits(whole) * NS + _digits(part[:9].ljust(9, "0"))
    return -number if text.startswith("-") else number


def _holes(told: dict[str, str], stored: int) -> Regions:
    """Gives where the bytes of a file with holes lie. Raises ValueError."""
    if tuple(sorted(told)) != _HOLES:
        raise ValueError("a sparse file of another form")
    numbers = [_digits(text) for text in told["map"].split(",")]
    if len(numbers) != 2 * _digits(told["numblocks"]):
        raise ValueError("a sparse file whose map has another length")
    regions = list(zip(numbers[::2], numbers[1::2], strict=True))
    end = 0
    for start, length in regions:
        if start < end:
            raise ValueError("a sparse file whose map is none")
        end = start + length
    if end > _digits(told["size"]) or sum(length for _, length in regions) != stored:
        raise ValueError("a sparse file whose map is not its size")
    return regions


def _apply(row: Member, pax: dict[str, bytes]) -> tuple[Member, Regions]:
    """Gives the member with what its pax header says, and where its bytes lie."""
    told: dict[str, Any] = {}
    xattrs: dict[str, str] = {}
    sparse: dict[str, str] = {}
    for key, value in pax.items():
        text = value.decode("utf-8", "surrogateescape")
        if key == "path":
            told["path"] = text
        elif key == "linkpath":
            told["link"] = text
        elif key in ("size", "uid", "gid"):
            told[key] = _digits(text)
        elif key == "mtime":
            told[key] = _nanoseconds(text)
        elif key.startswith(_XATTR):
            # tar writes % and = of a name as escapes
            name = key[len(_XATTR) :].replace("%3D", "=").replace("%25", "%")
            xattrs[name] = base64.b64encode(value).decode("ascii")
        elif key.startswith(_SPARSE) and row.type == FILE:
            sparse[key[len(_SPARSE) :]] = text
        else:
            raise ValueError(f"an unknown record {key[:40]!r}")
    row = row._replace(**told, xattrs=xattrs)
    if not sparse:
        return row, [(0, row.size)]
    regions = _holes(sparse, row.size)
    # "path" is then a name for those who know nothing of holes
    return row._replace(path=sparse["name"], size=int(sparse["size"])), regions


class _Contents:
    """The sha256 of a file's bytes as they pass; a hole counts as the zeros that it reads as."""

    def __init__(self, size: int, regions: Regions) -> None:
        self._digest = hashlib.sha256()
        self._size, self._at = size, 0
        self._regions = iter(regions)
        self._left = 0

    def add(self, raw: memoryview) -> None:
        """Take in the next bytes that are stored."""
        while raw:
            while not self._left:
                start, self._left = next(self._regions)
                self._fill(start)
            part = raw[: self._left]
            self._digest.update(part)
            self._at += len(part)
            self._left -= len(part)
            raw = raw[len(part) :]

    def _fill(self, upto: int) -> None:
        while self._at < upto:
            count = min(upto - self._at, len(_ZEROS))
            self._digest.update(memoryview(_ZEROS)[:count])
            self._at += count

    def sha256(self) -> str:
        """Gives the hash of all of the file."""
        self._fill(self._size)
        return self._digest.hexdigest()


class Reader:
    """The stream, piece by piece. `feed` raises NodeError before the piece may go any further.

    `wanted` gives the members in the order in which they must come; `check` gets each of them.
    `hashes` are those of the files' bytes, in the same order.
    """

    def __init__(self, wanted: Iterator[Member], check: Callable[[Member], None]) -> None:
        self._wanted = wanted
        self._check = check
        self._rest = b""
        self._skip = 0
        self._body: list[bytes] | None = None
        self._pax: dict[str, bytes] = {}
        self._left = 0
        self._ended = False
        self._file = Member("", "", 0, 0, 0, 0, 0, "", {})
        self._contents: _Contents | None = None
        self.count = 0
        self.hashes: list[str] = []

    def feed(self, piece: bytes) -> None:
        """Look at the next piece of the stream."""
        data = memoryview(self._rest + piece if self._rest else piece)
        at = 0
        while True:
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._pass(data[at : at + step])
                at += step
                self._skip -= step
                if self._skip:
                    break
                self._end_of_body()
            if len(data) - at < BLOCK:
                break
            self._header(bytes(data[at : at + BLOCK]))
            at += BLOCK
        self._rest = bytes(data[at:])

    def _pass(self, part: memoryview) -> None:
        """Look at bytes of a body; what fills its last block is not among those of a file."""
        if self._body is not None:
            self._body.append(bytes(part))
            return
        if self._contents and self._left:
            self._contents.add(part[: self._left])
            self._left -= min(self._left, len(part))

    def _end_of_file(self) -> None:
        """Compare a file's bytes with their hash, once all of them have passed."""
        if self._contents is None:
            return
        found, self._contents = self._contents.sha256(), None
        self.hashes.append(found)
        if self._file.sha256 not in ("", found):
            raise refused(f"{self._file.path[:80]!r} has other bytes than were recorded")

    def _end_of_body(self) -> None:
        """Take in a pax header's records, or a file's hash, once all of it is there."""
        if self._body is None:
            self._end_of_file()
            return
        raw = b"".join(self._body)[: self._left]
        self._body = None
        try:
            self._pax = _pax(raw)
        except ValueError as error:
            raise refused(f"a pax header cannot be read: {error}") from None

    def _header(self, raw: bytes) -> None:
        """Look at one header block."""
        if raw.count(0) == BLOCK:
            self._ended = True
            return
        if self._ended:
            raise refused("something stands behind its end")
        try:
            fields = _HEADER.unpack(raw)
            if fields[9] != b"ustar\0" or fields[10] != b"00":
                raise ValueError("not a header of our form")
            if _number(fields[6]) != sum(raw) - sum(fields[6]) + _BLANK:
                raise ValueError("its checksum is wrong")
            letter = chr(raw[156])
            if letter == "x":
                size = _number(fields[4])
                if self._pax or size > MAX_PAX:
                    raise ValueError("a pax header that is doubled or too large")
                self._left, self._skip = size, (size + BLOCK - 1) // BLOCK * BLOCK
                self._body = []
                return
            self._member(fields, letter)
        except ValueError as error:
            raise refused(f"member {self.count + 1}: {error}") from None

    def _member(self, fields: tuple[bytes, ...], letter: str) -> None:
        """Look at one member: what it is, and whether it is the next of the manifest."""
        name, mode, uid, gid, size, mtime, _, _, target, _, _, prefix = fields
        path = _text(name)
        if letter not in _KNOWN:
            kind = _KINDS.get(letter, f"of type {letter!r}")
            raise ValueError(f"{path[:80]!r} is {kind}")
        if prefix[0]:
            path = f"{_text(prefix)}/{path}"
        link = _text(target) if letter in (LINK, SYMLINK) else ""
        row = Member(path, letter, _number(mode), _number(uid), _number(gid), _number(size),
                     _number(mtime) * NS, link, {})  # fmt: skip
        row, regions = _apply(row, self._pax)
        self._pax = {}
        self._left = sum(length for _, length in regions)
        self._skip = (self._left + BLOCK - 1) // BLOCK * BLOCK
        if letter == FOLDER and row.path.endswith("/"):
            row = row._replace(path="." if row.path == "./" else row.path[:-1])
        if letter != FILE and row.size:
            raise ValueError(f"{row.path[:80]!r} is no file and has a body")
        self._check(row)
        expected = next(self._wanted, None)
        if expected is None:
            raise ValueError(f"{row.path[:80]!r} is not in the list of members")
        if row != expected._replace(sha256=""):
            raise ValueError(f"{row.path[:80]!r} is not {expected.path[:80]!r} as it was recorded")
        self.count += 1
        if letter == FILE:
            self._file, self._contents = expected, _Contents(row.size, regions)
            if not self._skip:
                self._end_of_file()

    def finish(self) -> None:
        """Say that the stream has ended. Raises NodeError when it is not whole."""
        if self._rest or self._skip or self._body is not None or self._pax:
            raise refused(f"it ends in the middle, after {self.count} members")
        if next(self._wanted, None) is not None:
            raise refused(f"it ends after {self.count} members, and more were recorded")
        if not self._ended:
            raise refused("it has no end")


class Safety:
    """What no member may be, whatever a manifest says: it would land outside of its folder."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._files: dict[str, str] = {}
        self.setuid: list[str] = []

    def __call__(self, row: Member) -> None:
        """Look at the next member. Raises ValueError."""
        path = row.path
        self._inside(path, path)
        if row.type == FOLDER:
            self._folders.add(path)
        elif path == ".":
            raise ValueError("the root is no folder")
        if path != "." and path in self._files:
            raise ValueError(f"{path[:80]!r} stands twice")
        above = path.rpartition("/")[0] or "."
        if path != "." and above not in self._folders:
            raise ValueError(f"{path[:80]!r} does not lie in a folder of the payload")
        if row.type == LINK:
            self._inside(row.link, path)
            if self._files.get(row.link) not in (FILE, SYMLINK):
                raise ValueError(f"{path[:80]!r} shares {row.link[:80]!r}, which is no file of it")
        if row.type == FILE and (row.mode & 0o6000 or "security.capability" in row.xattrs):
            self.setuid.append(path)
        self._files[path] = row.type

    @staticmethod
    def _inside(path: str, what: str) -> None:
        """Raise ValueError for a path that leads out, or could."""
        parts = path.split("/")
        if path != "." and (".." in parts or "." in parts or "" in parts):
            raise ValueError(f"{what[:80]!r} leads out of its folder ({path[:80]!r})")
