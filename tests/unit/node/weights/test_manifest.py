"""Weights pass by the page cache: what was not in it before is not in it after, and what was there,
which a live engine may read from, stays (incident C11)."""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from node import snapshot
from node.core import dirfd
from node.core.errors import NodeError
from node.transfer import manifest
from tests.unit.node.support.host import at_most
from tests.unit.node.support.transfers import Ends, content, empty, files, resident

MIB = 1 << 20
SIZE = 96 * MIB
# what readahead may leave behind the last byte that was asked for
SLACK = 8 * MIB


def given(ends: Ends, source: Path) -> None:
    got, gave = ends.move(streams=1)
    assert got["ok"] and gave["ok"] and (ends.target / source.name).stat().st_size == SIZE


def hashed(ends: Ends, source: Path) -> None:
    assert ends.giver.call("weights hash", {"path": str(ends.source), "again": True})["ok"]


def looked_at(ends: Ends, source: Path) -> None:
    (row,) = snapshot.read_weights([str(ends.source)], deep=True)
    assert row["files"][0]["sha256"]


READERS: dict[str, Callable[[Ends, Path], None]] = {
    "given": given, "hashed": hashed, "a deep snapshot": looked_at,
}  # fmt: skip


@pytest.mark.parametrize("how", READERS)
def test_what_is_read_is_not_left_in_the_page_cache(ends: Ends, how: str) -> None:
    files(ends.source, a_bin=SIZE)
    source = ends.source / "a.bin"
    empty(source)
    READERS[how](ends, source)
    assert resident(source) <= SLACK


@pytest.mark.parametrize("how", READERS)
def test_what_a_live_engine_has_there_stays(ends: Ends, how: str) -> None:
    """Half of the file was read by somebody, and a page behind it is mapped."""
    files(ends.source, a_bin=SIZE)
    source = ends.source / "a.bin"
    empty(source)
    with source.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert len(file.read(SIZE // 2)) == SIZE // 2
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            # no readahead, which would still be under way when the reading begins
            mapped.madvise(mmap.MADV_RANDOM)
            assert mapped[SIZE - 40 * MIB] >= 0
            before = resident(source)
            assert before >= SIZE // 2
            READERS[how](ends, source)
            # the kernel may take a little of it back meanwhile, and we would take half
            assert before - SLACK <= resident(source) <= before + SLACK


def test_what_came_is_not_left_in_the_page_cache(ends: Ends) -> None:
    made = files(ends.source, a_bin=SIZE, b_bin=5 * MIB + 7)
    assert ends.move()[0]["ok"]
    assert resident(*(ends.target / name for name in made)) <= MIB


def test_a_part_that_is_read_again_is_not_left_there(ends: Ends) -> None:
    files(ends.source, a_bin=SIZE)
    ends.killed_taker(SIZE // 2)
    (part,) = ends.parts()
    empty(part)
    assert ends.move()[0]["resumed_bytes"] > SIZE // 2
    assert resident(ends.target / "a.bin") <= SLACK


def test_where_the_kernel_does_not_tell_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown is not absent: the pages may be the engine's."""
    files(tmp_path, a_bin=8 * MIB)
    path = tmp_path / "a.bin"
    monkeypatch.setattr(dirfd, "_residency", lambda fd, start, size: None)
    with path.open("rb") as file, dirfd.Passing(file.fileno()) as passing:
        before = resident(path)
        passing.upto(len(file.read()))
    assert resident(path) == before == 8 * MIB


# Links in weights: followed inside their folder and a Hugging Face cache, and nowhere else.


def cache(root: Path) -> tuple[Path, dict[str, bytes]]:
    """A model as `hf download` lays it out: a snapshot of links into ../../blobs."""
    blobs = root / "models--org--tiny" / "blobs"
    made = files(blobs, aaaa=3 * MIB, bbbb=40)
    snapshot = root / "models--org--tiny" / "snapshots" / "0123abcd"
    (snapshot / "sub").mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/aaaa")
    (snapshot / "config.json").symlink_to("../../blobs/bbbb")
    (snapshot / "sub" / "tokenizer.json").symlink_to("../../../blobs/bbbb")
    return snapshot, {"model.safetensors": made["aaaa"], "config.json": made["bbbb"],
                      "sub/tokenizer.json": made["bbbb"]}  # fmt: skip


def test_a_hugging_face_cache_is_given_as_plain_files(ends: Ends, tmp_path: Path) -> None:
    """Before: `cp -rL` first, another 149 GB."""
    snapshot, wanted = cache(tmp_path / "hub")
    (snapshot / "out.bin").symlink_to("../../../../secret")
    (tmp_path / "secret").write_text("secret")
    with ends.offering(path=str(snapshot)):
        got = ends.taker.call("weights receive", ends.receive())
    assert got["ok"] and got["outside"] == ["out.bin"] and content(ends.target) == wanted
    assert not any(path.is_symlink() for path in ends.target.rglob("*"))
    with ends.offering(path=str(snapshot)):
        assert not ends.taker.call("weights receive", ends.receive())["changed"]


# where each link of the folder leads, seen from the folder; True: it is followed
LINKS = {
    "real.bin": True,
    "sub/../real.bin": True,
    "./real.bin": True,
    "{folder}/real.bin": True,
    "chain": True,
    "/etc/hostname": False,
    "../secret": False,
    "sub/../../secret": False,
    "../folder/real.bin": False,
    "loop": False,
    "nowhere": False,
    "out/secret": False,
    "fifo": False,
    "/proc/self/root/etc/hostname": False,
    ".hidden": True,
}


@pytest.mark.parametrize("to", LINKS)
def test_each_link_is_followed_or_named(tmp_path: Path, to: str) -> None:
    where = tmp_path / "folder"
    files(where, real_bin=10)
    (where / "sub").mkdir()
    (where / ".hidden").write_text("hidden")
    (tmp_path / "secret").write_text("secret")
    (where / "chain").symlink_to("real.bin")
    (where / "loop").symlink_to("loop")
    (where / "out").symlink_to("..")
    os.mkfifo(where / "fifo")
    (where / "link.bin").symlink_to(to.format(folder=where))
    folder = manifest.Folder(str(where))
    with at_most(5):
        assert ("link.bin" in folder.names()) == LINKS[to]
        if LINKS[to]:
            with folder.opened("link.bin") as file:
                assert file.read(4)
        else:
            assert "link.bin" in folder.outside()
            said = pytest.raises(NodeError, match=r"link\.bin is no file of this folder")
            with said, folder.opened("link.bin"):
                pass


@pytest.mark.parametrize("verb", ["weights offer", "weights hash"])
def test_weights_of_one_file_that_lead_out_are_not_read(
    ends: Ends, tmp_path: Path, verb: str
) -> None:
    """Read as root, sent, and written for everybody to read: /etc/shadow, say."""
    secret = tmp_path / "shadow"
    secret.write_text("secret")
    secret.chmod(0o600)
    ends.source.mkdir()
    link = ends.source / "model.gguf"
    link.symlink_to(secret)
    more = ends.offer(path=str(link), deadline_s=2) if "offer" in verb else {"path": str(link)}
    said = ends.giver.call(verb, more)
    assert not said["ok"] and "model.gguf leads out of its folder" in said["error"], said
    assert f"readlink -f {link}" in said["remedy"]


def test_one_file_of_a_cache_is_given(ends: Ends, tmp_path: Path) -> None:
    snapshot, wanted = cache(tmp_path / "hub")
    (snapshot / "model.gguf").symlink_to("../../blobs/aaaa")
    target = ends.target / "model.gguf"
    with ends.offering(path=str(snapshot / "model.gguf")):
        got = ends.taker.call("weights receive", ends.receive(path=str(target)))
    assert got["ok"] and target.read_bytes() == wanted["model.safetensors"]


@pytest.mark.parametrize("refs", ["../../../../..", "gone", "", "a/b", "\xff", None])
def test_a_cache_that_names_no_snapshot_of_its_own_is_not_followed(
    tmp_path: Path, refs: str | None
) -> None:
    snapshot, _ = cache(tmp_path / "hub")
    model = snapshot.parents[1]
    if refs is not None:
        (model / "refs").mkdir()
        (model / "refs" / "main").write_bytes(refs.encode("latin-1"))
    (snapshot.parent / "4567ef01").mkdir()
    assert manifest.snapshot_of(str(model)) == str(model)


@pytest.mark.parametrize("what", ["/dev/zero", "fifo", "large", "of a user"])
def test_a_manifest_that_is_not_roots_own_file_says_nothing(tmp_path: Path, what: str) -> None:
    """It was opened before its owner was asked: a link to /dev/zero took all memory."""
    where = tmp_path / "w"
    files(where, a_bin=10)
    folder = manifest.Folder(str(where))
    with folder.opened("a.bin") as file:
        right = manifest.hash_of(file, "a.bin")
    folder.save({"a.bin": right})
    assert folder.list()[0]["sha256"] == right.sha256
    path = where / ".rigbook" / "manifest.json"
    if what == "of a user":
        os.chown(path, 12, 34)
    elif what == "large":
        said = json.loads(path.read_text())
        path.write_text(json.dumps({**said, "more": "x" * (80 << 20)}))
    else:
        path.unlink()
        os.mkfifo(path) if what == "fifo" else path.symlink_to(what)
    with at_most(5):
        assert folder.list()[0]["sha256"] is None


def test_a_manifest_in_another_users_folder_says_nothing(tmp_path: Path) -> None:
    where = tmp_path / "w"
    files(where, a_bin=10)
    folder = manifest.Folder(str(where))
    with folder.opened("a.bin") as file:
        folder.save({"a.bin": manifest.hash_of(file, "a.bin")})
    os.chown(where / ".rigbook", 12, 34)
    assert folder.list()[0]["sha256"] is None


# models look: GGUF and safetensors by their own headers; cuts at any byte are named.


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
    return dict(manifest.inspect_models({"paths": [str(path)]})["files"][0])


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
    monkeypatch.setattr(manifest, "_WINDOW", window)
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
    gone = manifest.inspect_models({"paths": [str(tmp_path / "gone")]})["files"][0]
    assert "No such file" in gone["broken"]
    assert manifest.inspect_models({"paths": [str(tmp_path)]})["files"][0]["broken"]
    for paths in ([], ["relative"], ["/a/../b"], "x"):
        with pytest.raises(manifest.NodeError):
            manifest.inspect_models({"paths": paths})


def test_only_the_header_is_read(tmp_path: Path) -> None:
    """A sparse file of 20 GB takes no time."""
    path = tmp_path / "big.gguf"
    path.write_bytes(gguf())
    with path.open("r+b") as file:
        file.truncate(20 << 30)
    assert manifest.one(str(path))["broken"] is None
