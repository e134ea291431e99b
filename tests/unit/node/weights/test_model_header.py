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


def gguf(tensors: int = 2, version: int = 3) -> bytes:
    """A whole GGUF: Q4_0 tensors of 64 values (36 bytes each, aligned to 32) and a token list."""
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("qwen3"),
        text("general.alignment") + struct.pack("<II", 4, 32),
        text("x.scale") + struct.pack("<If", 6, 1.5),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3)
        + b"".join(text(t) for t in ("a", "bb", "ccc")),
        text("x.types") + struct.pack("<IIQ", 9, 5, 4) + bytes(16),
    ]  # fmt: skip
    infos = [text(f"blk.{n}") + struct.pack("<IQQIQ", 2, 32, 2, 2, n * 64) for n in range(tensors)]
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, len(pairs)) + b"".join(pairs + infos)
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


def test_whole_files_tell_what_they_are(tmp_path: Path) -> None:
    found = look(tmp_path, gguf())
    assert (found["format"], found["broken"]) == ("gguf", None)
    assert found["said"] == "GGUF version 3, 2 tensors, architecture qwen3"
    vocabulary = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("general.architecture")
    assert look(tmp_path, vocabulary + struct.pack("<I", 8) + text("qwen3"))["broken"] is None
    found = look(tmp_path, safetensors())
    assert (found["format"], found["broken"]) == ("safetensors", None)
    assert found["said"] == "safetensors, 2 tensors of BF16, F32"


@pytest.mark.parametrize("make", [gguf, safetensors])
def test_every_cut_is_named(tmp_path: Path, make: object) -> None:
    raw = make()
    for size in range(16, len(raw)):
        found = look(tmp_path, raw[:size])
        assert found["broken"] is not None, size
    assert "cut off" in str(look(tmp_path, raw[:-1])["broken"])


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"p\xff\x01\x02" * 8, "unknown (starts with 70ff010270ff0102)"),
        (b"", "empty or zeroes"),
        (bytes(64), "empty or zeroes"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a git-lfs pointer"),
    ],
)
def test_other_files_are_named_by_what_they_are(tmp_path: Path, raw: bytes, kind: str) -> None:
    assert str(look(tmp_path, raw)["format"]).startswith(kind)


def test_an_old_version_more_bytes_and_a_hostile_header(tmp_path: Path) -> None:
    assert "version 1" in str(look(tmp_path, gguf(version=1))["broken"])
    assert look(tmp_path, gguf() + bytes(40))["broken"] is None
    assert "1 bytes more" in str(look(tmp_path, safetensors() + b"x")["broken"])
    huge = b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + bytes(64)
    assert look(tmp_path, huge)["broken"]
    array = text("k") + struct.pack("<IIQ", 9, 0, 1 << 62)
    assert look(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array)["broken"]
    junk = struct.pack("<Q", 20) + b'{"a": [1, 2, 3], "b"'
    assert "no JSON of tensors" in str(look(tmp_path, junk)["broken"])


def pair(key: str, kind: int, value: bytes) -> bytes:
    """A key of a GGUF header."""
    return text(key) + struct.pack("<I", kind) + value


def header(*pairs: bytes, tensors: int = 0, more: bytes = b"") -> bytes:
    """The front of a GGUF."""
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(pairs)) + b"".join(pairs) + more


NESTED = b"".join(struct.pack("<IQ", 9, 1) for _ in range(3000))
DEEP_JSON = b'{"a":' + b"[" * 200_000
CRAFTED = {
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
    assert said in str(look(tmp_path, raw)["broken"])


def test_arrays_that_the_format_allows_are_passed_over(tmp_path: Path) -> None:
    inner = struct.pack("<IQ", 8, 2) + text("a") + text("b")
    nested = struct.pack("<IQ", 9, 2) + inner + struct.pack("<IQ", 4, 3) + bytes(12)
    found = look(tmp_path, header(pair("k", 9, nested), pair("n", 4, bytes(4))))
    assert found["broken"] is None and "0 tensors" in str(found["said"])


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
