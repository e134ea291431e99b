"""Layers out of docker's store: byte for byte, from any offset, and nothing from outside of it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from node.core.errors import NodeError
from node.docker import overlay2
from node.transfer.protocol import BLOCK

CACHE = "0123456789abcdef" * 4


def made_tar(sizes: dict[str, int]) -> bytes:
    """A layer's tar with a folder, a link, an empty file and files of these sizes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        folder = tarfile.TarInfo("dir")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, size in sizes.items():
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(hashlib.sha256(name.encode()).digest() * (size // 32 + 1)))
        link = tarfile.TarInfo("dir/link")
        link.type, link.linkname = tarfile.SYMTYPE, "a"
        tar.addfile(link)
    return out.getvalue()


def store(root: Path, raw: bytes, names: dict[str, str] | None = None) -> tuple[str, str]:
    """A store as docker lays it out, with this tar as its one layer; chain id and diff id.

    `names` gives entries of the split another name than in the tar.
    """
    diff = "sha256:" + hashlib.sha256(raw).hexdigest()
    files = root / "overlay2" / CACHE / "diff"
    files.mkdir(parents=True)
    split, position = [], 0
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        for info in tar:
            if not info.isreg():
                continue
            header = base64.b64encode(raw[position : info.offset_data]).decode()
            split.append({"type": 2, "payload": header})
            content = raw[info.offset_data : info.offset_data + info.size]
            path = files / info.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            name = (names or {}).get(info.name, info.name)
            entry = {"type": 1, "name": name, "size": info.size, "payload": "AA=="}
            if not name.isascii():
                entry = {**entry, "name_raw": base64.b64encode(name.encode()).decode()}
            split.append(entry)
            position = info.offset_data + info.size
    split.append({"type": 2, "payload": base64.b64encode(raw[position:]).decode()})
    folder = Path(overlay2.folder_of(str(root), diff))
    folder.mkdir(parents=True)
    (folder / "cache-id").write_text(CACHE)
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in split)
    (folder / "tar-split.json.gz").write_bytes(gzip.compress(lines))
    return diff, diff


SIZES = {"a": 3 * BLOCK + 5, "dir/b": 0, "dir/ünicode": 700, "dir/c": BLOCK}


@pytest.mark.parametrize("offset", [0, 1, 511, 512, 1000, BLOCK, 3 * BLOCK + 600, 4 * BLOCK + 3000])
def test_a_layer_comes_byte_for_byte_from_any_offset(tmp_path: Path, offset: int) -> None:
    raw = made_tar(SIZES)
    layer = overlay2.Layer(str(tmp_path), *store(tmp_path, raw))
    assert layer.size() == len(raw)
    blocks = [bytes(block) for block in layer.blocks(offset)]
    assert b"".join(blocks) == raw[offset:]
    assert all(len(block) == BLOCK for block in blocks[:-1]) and len(blocks[-1]) <= BLOCK


def test_nothing_comes_from_outside_of_the_layer(tmp_path: Path) -> None:
    """A layer that holds a link to / must not give the host's own files to a peer."""
    where = store(tmp_path, made_tar({"evil/passwd": 100}), {"evil/passwd": "way/passwd"})
    (tmp_path / "overlay2" / CACHE / "diff" / "way").symlink_to("/etc")
    with pytest.raises(NodeError, match="leads out of layer"):
        list(overlay2.Layer(str(tmp_path), *where).blocks())
    where = store(tmp_path / "2", made_tar({"passwd": 100}))
    file = tmp_path / "2" / "overlay2" / CACHE / "diff" / "passwd"
    file.unlink()
    file.symlink_to("/etc/passwd")
    with pytest.raises((NodeError, OSError)):
        list(overlay2.Layer(str(tmp_path / "2"), *where).blocks())
    raw = made_tar({"x": 100})
    layer = overlay2.Layer(str(tmp_path / "3"), *store(tmp_path / "3", raw, {"x": "../../../../x"}))
    assert b"".join(map(bytes, layer.blocks())) == raw, "dots in a name stay inside"


def test_a_file_that_changed_is_told(tmp_path: Path) -> None:
    raw = made_tar({"a": 1000})
    where = store(tmp_path, raw)
    (tmp_path / "overlay2" / CACHE / "diff" / "a").write_bytes(b"short")
    with pytest.raises(NodeError, match="changed"):
        list(overlay2.Layer(str(tmp_path), *where).blocks())


def test_layers_that_are_there_are_counted_from_the_lowest(tmp_path: Path) -> None:
    diff, _ = store(tmp_path, made_tar({"a": 10}))
    other = "sha256:" + "2" * 64
    assert overlay2.present(str(tmp_path), [diff, other]) == 1
    assert overlay2.present(str(tmp_path), [other, diff]) == 0
    with pytest.raises(NodeError):
        overlay2.present(str(tmp_path), ["../../etc"])
    # moby's layer.CreateChainID: the first is the diff id; the next hashes both
    second = hashlib.sha256(f"{diff} {other}".encode()).hexdigest()
    assert overlay2.chains([diff, other]) == [diff, f"sha256:{second}"]
