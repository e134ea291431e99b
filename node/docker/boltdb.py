"""A bbolt file (containerd's index of its snapshots), read while its owner goes on writing it.

The format is that of go.etcd.io/bbolt (page.go, meta.go, bucket.go): pages with a B+ tree of
sorted keys, buckets in buckets, two meta pages by turns. A commit writes pages that are free and
the meta page last, so what is read between two equal looks at the meta pages is one state.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator

from node.core.errors import CannotRead

MAX_BYTES = 256 << 20
_PAGE, _META = struct.Struct("<QHHI"), struct.Struct("<IIIIQQQQQQ")
_BRANCH, _LEAF = struct.Struct("<IIQ"), struct.Struct("<IIII")
_MAGIC, _VERSION = 0xED0CDAED, 2
_IS_BRANCH, _IS_LEAF, _IS_BUCKET = 1, 2, 1
_DEPTH, _TRIES = 32, 20
# those of the machines that Linux knows
_PAGE_SIZES = (4096, 262144)


class Bucket:
    """A bucket: its values and its buckets, by key."""

    def __init__(self, file: _File, root: int, page: bytes | None = None) -> None:
        self._file = file
        self._items: dict[bytes, tuple[bool, bytes]] = {}
        budget = _Budget(file)
        start = file.page(root, budget) if page is None else page
        for is_bucket, key, value in file.items(start, 0, budget):
            self._items[key] = (is_bucket, value)

    def names(self) -> list[bytes]:
        """Gives the keys of all it holds, in order."""
        return list(self._items)

    def value(self, key: bytes) -> bytes:
        """Gives a value; empty where there is none."""
        is_bucket, value = self._items.get(key, (False, b""))
        return b"" if is_bucket else value

    def bucket(self, *keys: bytes) -> Bucket:
        """Gives the bucket below this one. Raises CannotRead where there is none."""
        found = self
        for key in keys:
            is_bucket, value = found._items.get(key, (False, b""))
            if not is_bucket or len(value) < 16:
                raise CannotRead(f"{self._file.path}: no bucket {key.decode('latin-1')[:80]}")
            root = int.from_bytes(value[:8], "little")
            found = Bucket(self._file, root, None if root else value[16:])
        return found


class _Budget:
    """The bytes that a bucket's pages, and what they hold, may have in sum: no page is in a tree
    twice, and no two values share bytes."""

    def __init__(self, file: _File) -> None:
        self._path, self._pages, self._values = file.path, file.length, file.length

    def take(self, pages: int, values: int) -> None:
        """Notes what was read. Raises CannotRead for more than the file has."""
        self._pages -= pages
        self._values -= values
        if self._pages < 0 or self._values < 0:
            raise CannotRead(f"{self._path} is damaged: its pages overlap")


class _File:
    """One state of the file."""

    def __init__(self, path: str, raw: bytes, page_size: int) -> None:
        self.path, self._raw, self._size = path, raw, page_size

    @property
    def length(self) -> int:
        """Gives the file's length."""
        return len(self._raw)

    def page(self, number: int, budget: _Budget) -> bytes:
        """Gives a page with what overflows it."""
        start = number * self._size
        _, _, _, overflow = _PAGE.unpack_from(self._raw, start)
        size = (1 + overflow) * self._size
        budget.take(size, 0)
        return self._raw[start : start + size]

    def items(
        self, page: bytes, depth: int, budget: _Budget
    ) -> Iterator[tuple[bool, bytes, bytes]]:
        """Gives whether it is a bucket, key and value of all that lies below a page."""
        _, kind, count, _ = _PAGE.unpack_from(page)
        if depth > _DEPTH or not kind & (_IS_BRANCH | _IS_LEAF):
            raise CannotRead(f"{self.path} is damaged: a page of kind {kind}")
        for at in range(_PAGE.size, _PAGE.size + count * _LEAF.size, _LEAF.size):
            if kind & _IS_BRANCH:
                child = self.page(_BRANCH.unpack_from(page, at)[2], budget)
                yield from self.items(child, depth + 1, budget)
                continue
            flags, position, key_size, value_size = _LEAF.unpack_from(page, at)
            budget.take(0, key_size + value_size)
            key_end = at + position + key_size
            value = page[key_end : key_end + value_size]
            yield bool(flags & _IS_BUCKET), page[at + position : key_end], value


def _fnv(raw: bytes) -> int:
    found = 0xCBF29CE484222325
    for byte in raw:
        found = (found ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return found


def _newest(raw: bytes, at: int) -> tuple[int, int, int] | None:
    """Gives transaction, page size and root page of the meta page at an offset, if it is whole."""
    if len(raw) < at + _PAGE.size + _META.size:
        return None
    fields = _META.unpack_from(raw, at + _PAGE.size)
    summed = raw[at + _PAGE.size : at + _PAGE.size + _META.size - 8]
    if fields[:2] != (_MAGIC, _VERSION) or fields[9] != _fnv(summed):
        return None
    if not _PAGE_SIZES[0] <= fields[2] <= _PAGE_SIZES[1]:
        return None
    return fields[8], fields[2], fields[4]


def _meta(raw: bytes) -> tuple[int, int, int] | None:
    first = _newest(raw, 0)
    size = first[1] if first else os.sysconf("SC_PAGE_SIZE")
    return max(filter(None, (first, _newest(raw, size))), default=None)


def read(path: str) -> Bucket:
    """Gives the file's top bucket. Raises CannotRead, for a file that is damaged too."""
    for _ in range(_TRIES):
        try:
            with open(path, "rb") as handle:
                raw = handle.read(MAX_BYTES)
                meta = _meta(raw)
                handle.seek(0)
                if meta is None or meta != _meta(handle.read(1 << 18)):
                    time.sleep(0.02)
                    continue
            return Bucket(_File(path, raw, meta[1]), meta[2])
        except OSError as error:
            raise CannotRead(f"{path}: {error.strerror or error}") from None
        except struct.error:
            raise CannotRead(f"{path} is damaged: it ends in the middle of a page") from None
    raise CannotRead(f"{path} is no index that can be read, or is written all the time")
