"""A bbolt file that is damaged so that its pages lead in circles, or claim each other's bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from node.core.errors import CannotRead
from node.docker import boltdb
from tests.unit.node.support.time_limit import at_most

PAGE = 4096
BRANCH, LEAF = 1, 2


def meta(root: int, page_size: int = PAGE) -> bytes:
    head = struct.pack("<IIIIQQQQQ", 0xED0CDAED, 2, page_size, 0, root, 0, 0, 9, 1)
    return page(4, 0, head + struct.pack("<Q", boltdb._fnv(head)))


def page(kind: int, count: int, body: bytes, overflow: int = 0) -> bytes:
    return (struct.pack("<QHHI", 0, kind, count, overflow) + body).ljust(PAGE, b"\0")


def branch(*children: int) -> bytes:
    return page(BRANCH, len(children), b"".join(struct.pack("<IIQ", 0, 0, n) for n in children))


CASES = {
    "a page that leads to itself": [branch(*[2] * 200)],
    "two pages that lead to each other": [branch(*[3] * 200), branch(*[2] * 200)],
    "a deep tree that shares its pages": [branch(*[n + 3] * 200) for n in range(20)]
    + [page(LEAF, 0, b"")],
    "values that are the whole file": [
        page(LEAF, 250, struct.pack("<IIII", 0, 16, 0, 48 << 20) * 250, (50 << 20) // PAGE),
        bytes(50 << 20),
    ],
    "pages that are the rest of the file": [
        branch(*range(3, 203)), *[page(LEAF, 0, b"", overflow=(50 << 20) // PAGE)] * 200,
        bytes(50 << 20),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_damaged_is_told_and_not_followed_for_ever(name: str, tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"".join([meta(2), meta(2), *CASES[name]]))
    with at_most(10), pytest.raises(CannotRead, match="is damaged"):
        boltdb.read(str(path))


@pytest.mark.parametrize("size", [0, 1, 16, 100, 1 << 31])
def test_a_page_size_that_none_has_is_damage(size: int, tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(meta(2, size) + meta(2, size) + page(LEAF, 0, b""))
    with at_most(10), pytest.raises(CannotRead):
        boltdb.read(str(path))
