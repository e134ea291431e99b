"""Read a shared library: class, machine, whether it is whole, what it exports and needs.

Only the ELF file's own tables are read, with every offset checked against the file's size: what
comes here may be cut off, or be anything (elf(5)).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

MACHINES = {3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86-64", 183: "aarch64",
            243: "riscv", 258: "loongarch"}  # fmt: skip
SHARED = 3
_NOBITS, _DYNAMIC, _DYNSYM, _STRTAB = 8, 6, 11, 3
_LOAD = 1
_NEEDED, _SONAME = 1, 14
# a definition that others can bind to: GLOBAL, WEAK or GNU_UNIQUE, visible by default or protected
_BINDINGS, _VISIBLE = (1, 2, 10), (0, 3)
MAX_SYMBOLS = 200_000
# all names of a library together: overlapping ones would be more than its file
MAX_NAMES = 64 << 20
# a request carries a library; one of HAMi has less than 1 MB
MAX_BYTES = 24 << 20


class BrokenElf(Exception):
    """Not an ELF file, or not a whole one; the text says what is wrong."""


class Elf(NamedTuple):
    """A shared library's own words about itself; names sorted, `needed` in the file's order."""

    bits: int
    machine: str
    shared: bool
    soname: str
    exported: tuple[str, ...]
    needed: tuple[str, ...]


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int
    entry: int


class _Reader:
    """The file's bytes with the byte order and the word size of its header."""

    def __init__(self, raw: bytes) -> None:
        if raw[:4] != b"\x7fELF":
            start = raw[:8].hex() or "nothing"
            raise BrokenElf(f"not an ELF file (starts with {start})")
        if len(raw) < 64:
            raise BrokenElf(f"cut off: {len(raw)} bytes, not even its header")
        if raw[4] not in (1, 2) or raw[5] not in (1, 2):
            raise BrokenElf("an ELF header of no known class or byte order")
        self.raw = raw
        self.wide = raw[4] == 2
        self.order = "<" if raw[5] == 1 else ">"

    def unpack(self, layout: str, offset: int, what: str) -> tuple[int, ...]:
        """Gives numbers at an offset. Raises BrokenElf when they are beyond the end."""
        full = self.order + layout
        if offset < 0 or offset + struct.calcsize(full) > len(self.raw):
            raise BrokenElf(f"cut off: {what} would end at byte {offset + struct.calcsize(full)} "
                            f"of {len(self.raw)}")  # fmt: skip
        return struct.unpack_from(full, self.raw, offset)

    def require(self, offset: int, size: int, what: str) -> None:
        """Raise BrokenElf when a part of the file is beyond its end."""
        if offset < 0 or size < 0 or offset + size > len(self.raw):
            raise BrokenElf(f"cut off: {what} ends at byte {offset + size} of {len(self.raw)}")


def machine_of(raw: bytes) -> tuple[int, str]:
    """Gives bits and machine of a file's first 64 bytes. Raises BrokenElf when it is no ELF."""
    reader = _Reader(raw)
    number = reader.unpack("H", 18, "its machine")[0]
    return 64 if reader.wide else 32, MACHINES.get(number, f"machine {number}")


def parse(raw: bytes) -> Elf:
    """Gives what a library says of itself. Raises BrokenElf for anything that is not whole."""
    reader = _Reader(raw)
    bits, machine = machine_of(raw[:64])
    kind = reader.unpack("H", 16, "its type")[0]
    if reader.wide:
        layout = reader.unpack("QQQIHHHHHH", 24, "its header")
    else:
        layout = reader.unpack("IIIIHHHHHH", 24, "its header")
    _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, _ = layout
    _check_segments(reader, phoff, phentsize, phnum)
    sections = _sections(reader, shoff, shentsize, shnum)
    entries = _dynamic(reader, sections)
    soname = entries.get(_SONAME, [""])[0]
    return Elf(
        bits,
        machine,
        kind == SHARED,
        soname,
        tuple(sorted(set(_exported(reader, sections)))),
        tuple(entries.get(_NEEDED, [])),
    )


def described(raw: bytes) -> dict[str, Any]:
    """Gives `elf` (its tables) and `broken` (why there are none); one of them is null."""
    try:
        found = parse(raw)
    except BrokenElf as error:
        return {"elf": None, "broken": str(error)}
    return {"elf": dict(found._asdict()), "broken": None}


def _check_segments(reader: _Reader, offset: int, size: int, count: int) -> None:
    """Raise BrokenElf when a part that is loaded into memory is not all there."""
    for n in range(count):
        at = offset + n * size
        if reader.wide:
            kind, _, start, _, _, length = reader.unpack("IIQQQQ", at, "a program header")
        else:
            kind, start, _, _, length = reader.unpack("IIIII", at, "a program header")
        if kind == _LOAD:
            reader.require(start, length, "a part that is loaded")


def _sections(reader: _Reader, offset: int, size: int, count: int) -> list[_Section]:
    """Gives the section headers, each section's bytes checked to be there."""
    if not offset or not count:
        raise BrokenElf("it has no section headers (stripped of them, or cut off)")
    found: list[_Section] = []
    for n in range(count):
        at = offset + n * size
        if reader.wide:
            row = reader.unpack("IIQQQQIIQQ", at, "a section header")
        else:
            row = reader.unpack("IIIIIIIIII", at, "a section header")
        section = _Section(row[1], row[4], row[5], row[6], row[9])
        if section.kind not in (0, _NOBITS):
            reader.require(section.offset, section.size, f"section {n}")
        found.append(section)
    return found


class _Names:
    """The string table that a section's link names."""

    def __init__(self, reader: _Reader, sections: list[_Section], link: int) -> None:
        if not 0 < link < len(sections) or sections[link].kind != _STRTAB:
            raise BrokenElf(f"section {link} is not the string table that another one names")
        self._raw, self._start = reader.raw, sections[link].offset
        self._end = self._start + sections[link].size
        self._left = MAX_NAMES

    def at(self, offset: int) -> str:
        """Gives the name at an offset. Raises BrokenElf."""
        start = self._start + offset
        end = self._raw.find(b"\0", start, min(self._end, start + self._left))
        if start >= self._end or end < 0:
            raise BrokenElf("a name lies beyond its string table, or the names overlap")
        self._left -= end - start
        return self._raw[start:end].decode("utf-8", "replace")


def _only(sections: list[_Section], kind: int) -> list[_Section]:
    """Gives the section of a kind of which a file has one at most (elf(5)), if there is one."""
    found = [section for section in sections if section.kind == kind]
    if len(found) > 1:
        raise BrokenElf(f"it has {len(found)} sections of a kind of which there is one")
    return found


def _exported(reader: _Reader, sections: list[_Section]) -> list[str]:
    """Gives the names that the dynamic symbol table defines for others."""
    names: list[str] = []
    for section in _only(sections, _DYNSYM):
        table = _Names(reader, sections, section.link)
        size = 24 if reader.wide else 16
        if section.entry != size or section.size // size > MAX_SYMBOLS:
            raise BrokenElf("its dynamic symbol table has an unknown shape")
        for at in range(section.offset, section.offset + section.size // size * size, size):
            if reader.wide:
                name, info, other, index, _, _ = reader.unpack("IBBHQQ", at, "a symbol")
            else:
                name, _, _, info, other, index = reader.unpack("IIIBBH", at, "a symbol")
            if index and info >> 4 in _BINDINGS and other & 3 in _VISIBLE:
                names.append(table.at(name))
    return names


def _dynamic(reader: _Reader, sections: list[_Section]) -> dict[int, list[str]]:
    """Gives the NEEDED and SONAME entries by tag."""
    found: dict[int, list[str]] = {}
    for section in _only(sections, _DYNAMIC):
        table = _Names(reader, sections, section.link)
        size = 16 if reader.wide else 8
        for at in range(section.offset, section.offset + section.size // size * size, size):
            tag, value = reader.unpack("QQ" if reader.wide else "II", at, "a dynamic entry")
            if tag == 0:
                break
            if tag in (_NEEDED, _SONAME):
                found.setdefault(tag, []).append(table.at(value))
    return found
