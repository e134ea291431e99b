"""Read the members of a tar stream as they pass, and refuse what a backup never holds.

Only the form that we write is understood (ustar and pax headers); everything else is an error, so
that tar can never read a stream differently from us.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from typing import Any

from node.backup.walk import FILE, FOLDER, LINK, SYMLINK, Member, member
from node.core.errors import NodeError

BLOCK = 512
MAX_PAX = 1 << 20
_KNOWN = (FILE, LINK, SYMLINK, FOLDER)
# name, mode, uid, gid, size, mtime, checksum, type, link, magic, version, prefix
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s2s80x155s12x")
_BLANK = sum(b" " * 8)
_XATTR = "SCHILY.xattr."
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


def _apply(row: Member, pax: dict[str, bytes]) -> Member:
    """Gives the member with what its pax header says."""
    if not pax:
        return row
    told: dict[str, Any] = {}
    xattrs: dict[str, str] = {}
    for key, value in pax.items():
        text = value.decode("utf-8", "surrogateescape")
        if key == "path":
            told["path"] = text
        elif key == "linkpath":
            told["link"] = text
        elif key in ("size", "uid", "gid", "mtime"):
            told[key] = int(text.partition(".")[0])
        elif key.startswith(_XATTR):
            # tar writes % and = of a name as escapes
            name = key[len(_XATTR) :].replace("%3D", "=").replace("%25", "%")
            xattrs[name] = base64.b64encode(value).decode("ascii")
        else:
            raise ValueError(f"an unknown record {key[:40]!r}")
    return row._replace(**told, xattrs=xattrs)


class Reader:
    """The stream, piece by piece. `feed` raises NodeError before the piece may go any further.

    `wanted` gives the members in the order in which they must come; `check` gets each of them.
    """

    def __init__(self, wanted: Iterator[bytes], check: Callable[[Member], None]) -> None:
        self._wanted = wanted
        self._check = check
        self._rest = b""
        self._skip = 0
        self._body: list[bytes] | None = None
        self._pax: dict[str, bytes] = {}
        self._left = 0
        self._ended = False
        self.count = 0
        self.bytes = 0

    def feed(self, piece: bytes) -> None:
        """Look at the next piece of the stream."""
        if self._skip >= len(piece) and not self._rest and self._body is None:
            self._skip -= len(piece)
            return
        data = self._rest + piece if self._rest else piece
        at = 0
        while True:
            if self._skip:
                step = min(self._skip, len(data) - at)
                if self._body is not None:
                    self._body.append(data[at : at + step])
                at += step
                self._skip -= step
                if self._skip:
                    break
                self._end_of_body()
            if len(data) - at < BLOCK:
                break
            self._header(data[at : at + BLOCK])
            at += BLOCK
        self._rest = data[at:]

    def _end_of_body(self) -> None:
        """Take in a pax header's records, once all of them are there."""
        if self._body is None:
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
                     _number(mtime), link, {})  # fmt: skip
        row = _apply(row, self._pax)
        self._pax = {}
        self._skip = (row.size + BLOCK - 1) // BLOCK * BLOCK
        if letter == FOLDER and row.path.endswith("/"):
            row = row._replace(path="." if row.path == "./" else row.path[:-1])
        if letter != FILE and row.size:
            raise ValueError(f"{row.path[:80]!r} is no file and has a body")
        self._check(row)
        line = next(self._wanted, None)
        if line is None:
            raise ValueError(f"{row.path[:80]!r} is not in the list of members")
        if row.line() != line:
            expected = member(line)
            if row != expected:
                text = f"{row.path[:80]!r} is not {expected.path[:80]!r} as it was recorded"
                raise ValueError(text)
        self.count += 1
        self.bytes += row.size

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
