"""models look: what a model file's own header says, and whether the file is as long as it promises.

GGUF (its specification, versions 2 and 3) and safetensors; no file is read whole.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from typing import Any, BinaryIO

from node.core import validate
from node.core.errors import Json, NodeError, io_reason
from node.rules.magic import MAX_JSON, format_of

MAX_HEADER = 256 << 20
# ggml knows four dimensions; a chat template is the longest text, some 100 KB
MAX_DIMS, MAX_DEPTH = 8, 4
MAX_TEXT, MAX_ALIGN = 16 << 20, 1 << 20
MAX_PAIRS, MAX_TENSORS = 1 << 16, 1 << 20
_WINDOW = 1 << 18
_LENGTH = struct.Struct("<Q").unpack_from
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
# ggml types: values a block, bytes a block (ggml.h)
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4),
    27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


class BrokenModel(Exception):
    """A model file that is not whole or not of its kind; the text says why."""


class _Gguf:
    """A GGUF header, read from the front through a window of it; arrays are passed over."""

    def __init__(self, file: BinaryIO, size: int, limit: int) -> None:
        self._file, self._size, self._limit = file, size, limit
        self._window, self._from, self._next = b"", 4, 0

    @property
    def at(self) -> int:
        """The byte that is read next."""
        return self._from + self._next

    def _ahead(self, count: int) -> None:
        """Raises BrokenModel when the header ends before the next `count` bytes, or is too long."""
        if self.at + count > self._size:
            raise BrokenModel(f"cut off in its header, at byte {self.at} of {self._size}")
        if self.at + count > self._limit:
            raise BrokenModel(f"its header is longer than {self._limit >> 20} MiB")

    def take(self, count: int) -> bytes:
        """Gives the next bytes. Raises BrokenModel when the header ends before them."""
        self._ahead(count)
        if count > MAX_TEXT:
            raise BrokenModel(f"its header has a text of {count} bytes")
        if self._next + count > len(self._window):
            self._from, self._next = self.at, 0
            self._file.seek(self._from)
            self._window = self._file.read(max(count, _WINDOW))
            if len(self._window) < count:
                raise BrokenModel(f"cut off in its header, at byte {self.at} of {self._size}")
        self._next += count
        return self._window[self._next - count : self._next]

    def pass_over(self, count: int) -> None:
        """Leaves bytes unread. Raises BrokenModel when the header ends before them."""
        self._ahead(count)
        self._next += count
        if self._next > len(self._window):
            self._window, self._from, self._next = b"", self.at, 0

    def number(self, layout: str) -> int:
        """Gives one little-endian number."""
        return int(struct.unpack("<" + layout, self.take(struct.calcsize(layout)))[0])

    def text(self) -> str:
        """Gives a string."""
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def _pass_texts(self, count: int) -> None:
        """Leaves strings unread: a vocabulary has hundreds of thousands, so without a call each."""
        while count:
            window, here, end = self._window, self._next, len(self._window)
            while count and here + 8 <= end:
                behind = here + 8 + _LENGTH(window, here)[0]
                if behind > end:
                    break
                here = behind
                count -= 1
            self._next = here
            self._ahead(0)
            if count:
                self.pass_over(self.number("Q"))
                count -= 1

    def _pass_array(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BrokenModel(f"its header has arrays more than {MAX_DEPTH} deep")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            self.pass_over(_SCALARS[inner] * count)
        elif inner == _STRING:
            self._pass_texts(count)
        elif inner == _ARRAY:
            for _ in range(count):
                self._pass_array(depth + 1)
        else:
            raise BrokenModel(f"its header has a value of the unknown kind {inner}")

    def value(self, kind: int, wanted: bool) -> Any:
        """Gives a string or an unsigned number that is wanted; None for what is passed over."""
        if kind == _ARRAY:
            self._pass_array(1)
        elif kind == _STRING and wanted:
            return self.text()
        elif kind == _STRING:
            self.pass_over(self.number("Q"))
        elif kind in _SCALARS:
            raw = self.take(_SCALARS[kind])
            return int.from_bytes(raw, "little") if kind in (4, 10) else None
        else:
            raise BrokenModel(f"its header has a value of the unknown kind {kind}")
        return None


def gguf(file: BinaryIO, size: int, limit: int = MAX_HEADER) -> tuple[str, int]:
    """Gives a GGUF's header in words, and the size that it promises. Raises BrokenModel.

    `limit` bounds the bytes that are read for it.
    """
    head = _Gguf(file, size, limit)
    version = head.number("I")
    if version not in (2, 3):
        raise BrokenModel(f"GGUF of version {version}, which no loader here reads")
    tensors, pairs = head.number("Q"), head.number("Q")
    if pairs > MAX_PAIRS or tensors > MAX_TENSORS:
        raise BrokenModel(f"its header would have {pairs} keys and {tensors} tensors")
    known: dict[str, Any] = {}
    for _ in range(pairs):
        key = head.text()
        wanted = key in ("general.architecture", "general.alignment")
        value = head.value(head.number("I"), wanted)
        if wanted:
            known[key] = value
    end = max((_tensor_end(head) for _ in range(tensors)), default=0)
    align = known.get("general.alignment", 32)
    if not isinstance(align, int) or not 0 < align <= MAX_ALIGN:
        raise BrokenModel("its general.alignment is no number of bytes")
    data = -(-head.at // align) * align
    name = known.get("general.architecture") or "unknown"
    # a vocabulary alone has no data, and need not be padded up to it
    promised = data + end if tensors else head.at
    return f"GGUF version {version}, {tensors} tensors, architecture {name}", promised


def _tensor_end(head: _Gguf) -> int:
    """Gives where a tensor ends, counted from the data's begin, by its entry in the header."""
    head.text()
    count = head.number("I")
    if count > MAX_DIMS:
        raise BrokenModel(f"its header has a tensor of {count} dimensions")
    dims = [head.number("Q") for _ in range(count)]
    kind, offset = head.number("I"), head.number("Q")
    values = 1
    for dim in dims:
        values *= dim
    block, width = _BLOCKS.get(kind, (1, 0))
    return offset + values // block * width


def safetensors(file: BinaryIO, size: int) -> tuple[str, int]:
    """Gives a safetensors' header in words, and the size that it promises. Raises BrokenModel."""
    file.seek(0)
    length = struct.unpack("<Q", file.read(8))[0]
    if length > MAX_JSON:
        raise BrokenModel(f"its header would be {length} bytes long")
    raw = file.read(length)
    if len(raw) != length:
        raise BrokenModel(f"cut off in its header: {8 + length} bytes of it, {size} in the file")
    try:
        rows: dict[str, Any] = json.loads(raw)
        tensors = [row for key, row in rows.items() if key != "__metadata__"]
        end = max((int(row["data_offsets"][1]) for row in tensors), default=0)
        kinds = sorted({str(row["dtype"]) for row in tensors})
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise BrokenModel("its header is no JSON of tensors") from None
    return f"safetensors, {len(tensors)} tensors of {', '.join(kinds)}", 8 + length + end


def one(path: str) -> Json:
    """Gives a file: size, format, its header in words, and why it is not whole (or null)."""
    answer: Json = {"path": path, "size": None, "format": None, "said": "", "broken": None}
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise BrokenModel("not a plain file")
            answer.update(size=info.st_size, format=format_of(file.read(16)))
            readers = {"gguf": gguf, "safetensors": safetensors}
            if answer["format"] in readers:
                answer["said"], wanted = readers[answer["format"]](file, info.st_size)
                answer["broken"] = _wrong_size(info.st_size, wanted, answer["format"])
    except OSError as error:
        answer["broken"] = io_reason(error)
    except BrokenModel as error:
        answer["broken"] = str(error)
    except (ValueError, ArithmeticError, RecursionError, struct.error) as error:
        answer["broken"] = f"its header makes no sense: {error}"
    return answer


def _wrong_size(size: int, wanted: int, kind: str) -> str | None:
    if size < wanted:
        return f"cut off: its header promises {wanted} bytes, there are {size}"
    # GGUF may be padded at its end; the loader of safetensors refuses bytes that nobody owns
    if size > wanted and kind == "safetensors":
        return f"{size - wanted} bytes more than its header promises"
    return None


def inspect_models(request: Any) -> Json:
    """Gives the headers of the named files, in their order."""
    body = validate.keys(request, "request", ("paths",), ("paths",))
    rows = validate.array(body["paths"], "paths", 100)
    paths: list[str] = [validate.path(row, f"paths[{n}]") for n, row in enumerate(rows)]
    if not paths:
        raise NodeError("no paths", "bad_request")
    return {"files": [one(path) for path in paths]}
