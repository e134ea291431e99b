"""An ELF file whose tables overlap: what it asks for is bounded by what a real library has."""

from __future__ import annotations

import resource
import struct
from collections.abc import Callable

import pytest

from node.vgpu import elf
from tests.unit.node.support.time_limit import at_most

SYMBOL, SECTION = 24, 64
SIZE = 16 << 20


def crafted(rows: list[tuple[int, int, int, int, int]], body: bytes = b"") -> bytes:
    """A 64 bit library with these section headers (kind, offset, size, link, entry), the body at
    byte 64 and the headers behind it, filled up to SIZE bytes."""
    start = 64 + len(body)
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, start, 0, 64, 56, 0, SECTION,
                        len(rows), 0)  # fmt: skip
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 1, entry)
        for kind, offset, size, link, entry in rows
    )
    return (head + body + table).ljust(SIZE, b"A") + b"\0"


# a symbol that is exported, and the name of it: most of the file
NAMED = struct.pack("<IBBHQQ", 0, 0x12, 0, 1, 0, 0)
NEEDS = struct.pack("<QQ", 1, 0)
STRINGS = (3, 1 << 20, SIZE + 1 - (1 << 20), 0, 0)
CASES: dict[str, Callable[[], bytes]] = {
    "dynsym sections that overlap": lambda: crafted(
        [(11, 64, SYMBOL * 30000, 1, SYMBOL), STRINGS]
        + [(11, 64, SYMBOL * 30000, 1, SYMBOL)] * 65000,
        bytes(64) * 12000,
    ),
    "sections that are the whole file": lambda: crafted([(1, 0, SIZE, 0, 0)] * 65000),
    "symbols with names of megabytes": lambda: crafted(
        [(11, 64, SYMBOL * 40000, 1, SYMBOL), STRINGS], NAMED * 40000
    ),
    "dynamic entries with names of megabytes": lambda: crafted(
        [(6, 64, 16 * 60000, 1, 16), STRINGS], NEEDS * 60000
    ),
    "dynamic sections that overlap": lambda: crafted(
        [(6, 64, 16 * 60000, 1, 16), STRINGS, *[(6, 64, 16 * 60000, 1, 16)] * 65000],
        struct.pack("<QQ", 5, 0) * 60000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_tables_that_overlap_end_soon_and_take_little_memory(name: str) -> None:
    raw = CASES[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with at_most(5):
        found = elf.described(raw)
    assert (found["elf"] is None) == bool(found["broken"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024
