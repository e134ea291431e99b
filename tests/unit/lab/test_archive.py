"""The image archive: readable, complete and the same bytes each time."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from lab.engine import docker_archive, image


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small root tree with a link of each kind."""
    top = tmp_path / "root"
    (top / "usr/bin").mkdir(parents=True)
    (top / "var/log").mkdir(parents=True)
    (top / "usr/bin/tool").write_text("x" * 5000)
    (top / "usr/bin/tool").chmod(0o755)
    (top / "usr/bin/same").hardlink_to(top / "usr/bin/tool")
    (top / "bin").symlink_to("usr/bin")
    (top / "var/log/noise").write_text("noise")
    return top


def write(root: Path, target: Path) -> str:
    """Write the archive; the image's id."""
    return docker_archive.write_archive(root, target, "a/b:1", ["PATH=/bin"], image.skip)


def test_it_is_what_docker_load_reads(root: Path, tmp_path: Path) -> None:
    image_id = write(root, tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as outer:
        names = outer.getnames()
        read = {name: outer.extractfile(name).read() for name in names}
    (manifest,) = json.loads(read["manifest.json"])
    config = read[manifest["Config"]]
    assert manifest["RepoTags"] == ["a/b:1"]
    assert image_id == "sha256:" + hashlib.sha256(config).hexdigest()
    (layer,) = manifest["Layers"]
    digest = hashlib.sha256(read[layer]).hexdigest()
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    with tarfile.open(fileobj=io.BytesIO(read[layer])) as inner:
        members = {member.name: member for member in inner.getmembers()}
    assert members["bin"].linkname == "usr/bin"
    assert members["usr/bin/same"].size == 5000
    assert members["usr/bin/tool"].islnk()
    assert members["usr/bin/same"].mode == 0o755
    assert "var/log" in members
    assert "var/log/noise" not in members


def test_the_same_tree_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    first = write(root, tmp_path / "1.tar")
    os.utime(root / "usr/bin/tool", (1, 1))
    (root / "var/log/noise").write_text("other noise")
    assert write(root, tmp_path / "2.tar") == first
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_another_content_is_another_image(root: Path, tmp_path: Path) -> None:
    first = write(root, tmp_path / "1.tar")
    (root / "usr/bin/more").write_text("")
    assert write(root, tmp_path / "2.tar") != first


@pytest.mark.parametrize(
    ("path", "skipped"),
    [
        ("wheels", True),
        ("proc/1", True),
        ("proc", False),
        ("tmp/x", True),
        ("opt/vllm/lib/tmp/x.py", False),
        ("usr/share/document.txt", False),
        ("rooted/file", False),
    ],
)
def test_skip(path: str, skipped: bool) -> None:
    assert image.skip(path) is skipped
