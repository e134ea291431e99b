"""models look: GGUF and safetensors by their own headers; cuts at any byte are named."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from node.weights import model_header


def text(value: str) -> bytes:
    """A GGUF string."""
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    """A key of a GGUF header."""
    return text(key) + struct.pack("<I", kind) + value


def header(*pairs: bytes, tensors: int = 0, more: bytes = b"", version: int = 3) -> bytes:
    """The front of a GGUF."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(pairs)) + b"".join(pairs) + more


def gguf(tensors: int = 2, version: int = 3) -> bytes:
    """A whole GGUF: Q4_0 tensors of 64 values (36 bytes each, aligned to 32) and a token list."""
    words = b"".join(text(t) for t in ("a", "bb", "ccc"))
    pairs = [
        pair("general.architecture", 8, text("qwen3")),
        pair("general.alignment", 4, struct.pack("<I", 32)),
        pair("x.scale", 6, struct.pack("<f", 1.5)),
        pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + words),
        pair("x.types", 9, struct.pack("<IQ", 5, 4) + bytes(16)),
    ]
    infos = [text(f"blk.{n}") + struct.pack("<IQQIQ", 2, 32, 2, 2, n * 64) for n in range(tensors)]
    head = header(*pairs, tensors=tensors, more=b"".join(infos), version=version)
    head += bytes(-len(head) % 32)
    return head + bytes((tensors - 1) * 64 + 36)


def safetensors() -> bytes:
    """A whole safetensors of two tensors."""
    rows = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    }
    raw = json.dumps(rows).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(12)


def look(tmp_path: Path, raw: bytes) -> dict[str, object]:
    """What the verb says of a file with these bytes."""
    path = tmp_path / "model"
    path.write_bytes(raw)
    return dict(model_header.inspect_models({"paths": [str(path)]})["files"][0])


INNER = struct.pack("<IQ", 8, 2) + text("a") + text("b")
# arrays that the format allows are passed over
ARRAYS = pair("k", 9, struct.pack("<IQ", 9, 2) + INNER + struct.pack("<IQ", 4, 3) + bytes(12))


@pytest.mark.parametrize(("raw", "kind", "said"), [
    (gguf(), "gguf", "GGUF version 3, 2 tensors, architecture qwen3"),
    (gguf() + bytes(40), "gguf", "GGUF version 3, 2 tensors, architecture qwen3"),
    (header(pair("general.architecture", 8, text("qwen3"))), "gguf",
     "GGUF version 3, 0 tensors, architecture qwen3"),
    (header(ARRAYS, pair("n", 4, bytes(4))), "gguf", "GGUF version 3, 0 tensors"),
    (safetensors(), "safetensors", "safetensors, 2 tensors of BF16, F32"),
])  # fmt: skip
def test_whole_files_tell_what_they_are(tmp_path: Path, raw: bytes, kind: str, said: str) -> None:
    found = look(tmp_path, raw)
    assert (found["format"], found["broken"]) == (kind, None) and said in str(found["said"])


@pytest.mark.parametrize("make", [gguf, safetensors])
def test_every_cut_is_named(tmp_path: Path, make: object) -> None:
    raw = make()
    for size in range(16, len(raw)):
        found = look(tmp_path, raw[:size])
        assert found["broken"] is not None, size
    assert "cut off" in str(look(tmp_path, raw[:-1])["broken"])


@pytest.mark.parametrize(("raw", "kind"), [
    (b"p\xff\x01\x02" * 8, "unknown (starts with 70ff010270ff0102)"), (b"", "empty or zeroes"),
    (bytes(64), "empty or zeroes"),
    (b"version https://git-lfs.github.com/spec/v1\n", "a git-lfs pointer"),
])  # fmt: skip
def test_other_files_are_named_by_what_they_are(tmp_path: Path, raw: bytes, kind: str) -> None:
    assert str(look(tmp_path, raw)["format"]).startswith(kind)


NESTED = b"".join(struct.pack("<IQ", 9, 1) for _ in range(3000))
DEEP_JSON = b'{"a":' + b"[" * 200_000
CRAFTED = {
    "an old version": (gguf(version=1), "version 1"),
    "more bytes": (safetensors() + b"x", "1 bytes more"),
    "no JSON": (struct.pack("<Q", 20) + b'{"a": [1, 2, 3], "b"', "no JSON of tensors"),
    "counts without an end": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + bytes(64), ""),
    "an array without an end": (header(pair("k", 9, struct.pack("<IQ", 0, 1 << 62))), ""),
    "text for a number": (
        header(pair("general.alignment", 8, text("abc"))), "general.alignment is no number"),
    "a list for a number": (
        header(pair("general.alignment", 9, struct.pack("<IQ", 4, 0))), "general.alignment"),
    "an alignment of nothing": (
        header(pair("general.alignment", 4, bytes(4))), "general.alignment"),
    "an alignment of 4 GB": (
        header(pair("general.alignment", 4, b"\xff" * 4)), "general.alignment"),
    "arrays in arrays": (header(pair("k", 9, NESTED)), "more than 4 deep"),
    "dimensions": (
        header(tensors=1, more=text("t") + struct.pack("<I", 2_000_000) + b"\xff" * 16_000_012),
        "2000000 dimensions"),
    "keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40) + bytes(64), "keys"),
    "a long key": (header(struct.pack("<Q", 1 << 25), more=bytes(1 << 25)), "a text of"),
    "lists in lists": (struct.pack("<Q", len(DEEP_JSON)) + DEEP_JSON, "no JSON of tensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_header_is_the_files_fault(tmp_path: Path, name: str) -> None:
    """Each was an exception that the verb called a fault of rignode, or minutes of arithmetic."""
    raw, said = CRAFTED[name]
    broken = look(tmp_path, raw)["broken"]
    assert broken and said in str(broken)


@pytest.mark.parametrize("window", [12, 33, 1 << 18])
def test_a_vocabulary_larger_than_the_window_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """And what stands behind it is read at its place; a cut in it is still a cut."""
    monkeypatch.setattr(model_header, "_WINDOW", window)
    words = b"".join(text("w" * (n % 50)) for n in range(300))
    raw = header(
        pair("tokens", 9, struct.pack("<IQ", 8, 300) + words),
        pair("general.architecture", 8, text("qwen3")),
    )
    found = look(tmp_path, raw)
    assert found["broken"] is None and "architecture qwen3" in str(found["said"])
    for size in range(len(raw) - 60, len(raw)):
        assert "cut off" in str(look(tmp_path, raw[:size])["broken"])


def test_a_missing_file_a_folder_and_bad_paths(tmp_path: Path) -> None:
    gone = model_header.inspect_models({"paths": [str(tmp_path / "gone")]})["files"][0]
    assert "No such file" in gone["broken"]
    assert model_header.inspect_models({"paths": [str(tmp_path)]})["files"][0]["broken"]
    for paths in ([], ["relative"], ["/a/../b"], "x"):
        with pytest.raises(model_header.NodeError):
            model_header.inspect_models({"paths": paths})


def test_only_the_header_is_read(tmp_path: Path) -> None:
    """A sparse file of 20 GB takes no time."""
    path = tmp_path / "big.gguf"
    path.write_bytes(gguf())
    with path.open("r+b") as file:
        file.truncate(20 << 30)
    assert model_header.one(str(path))["broken"] is None
