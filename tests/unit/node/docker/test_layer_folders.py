"""Where a store keeps layers: docker's own words, and a real index of containerd's snapshotter.

tests/fixtures/containerd/snapshots.db.gz is the index of a rehearsal host (containerd 1.7.24, made
by `python -m lab up --containerd`): 161 snapshots, in pages below pages.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import CannotRead
from node.docker import api, boltdb, filesystem, layer_folders
from node.docker.overlay2 import chains

FIXTURE = Path(__file__).parents[3] / "fixtures" / "containerd" / "snapshots.db.gz"
# an image of the index: its two layers, and the folder of each (14 is the upper one's key)
DIFFS = [
    "sha256:13398abeb771615578af47083cd8acbbb748c9a84af28f2979428f123338da8f",
    "sha256:f977e2a66bf8e20994c105e5ac1c4706b553332e235a447fb62713c16ecbd5bf",
]
FOLDERS = ("9", "8")
VIEW = "1bkbgttttk71pgcoo4d0n8k7k-view"
OVERLAYFS = {"Name": "overlayfs", "Data": None}
INFO = {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]], "DockerRootDir": "/d"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """containerd's folder with that index, and the folders that it names."""
    (tmp_path / "io.containerd.content.v1.content").mkdir()
    home = tmp_path / "io.containerd.snapshotter.v1.overlayfs"
    home.mkdir()
    (home / "metadata.db").write_bytes(gzip.decompress(FIXTURE.read_bytes()))
    for number in range(300):
        (home / "snapshots" / str(number) / "fs").mkdir(parents=True)
    monkeypatch.setattr(api, "_CONTAINERD_ROOT", str(tmp_path))
    packed = {"Id": "sha256:bb", "GraphDriver": OVERLAYFS, "RootFS": {"Layers": DIFFS[1:]}}
    answers: dict[str, Any] = {
        "/info": INFO, "/images/packed:1/json": packed, "/containers/json": [],
        "/images/a:1/json": {**packed, "Id": "sha256:aa", "RootFS": {"Layers": DIFFS}},
        "/containers/stopped/json": {
            "Id": VIEW, "State": {"Pid": 0}, "GraphDriver": OVERLAYFS, "Config": {}
        },
    }  # fmt: skip
    monkeypatch.setattr(api, "get", lambda path, absent_ok=False: answers[path])
    return home


def index(home: Path) -> boltdb.Bucket:
    """The snapshots of the index."""
    return boltdb.read(str(home / "metadata.db")).bucket(b"v1", b"snapshots")


def test_an_images_layers_are_found_topmost_first(store: Path) -> None:
    wanted = [str(store / "snapshots" / number / "fs") for number in FOLDERS]
    assert filesystem.layers("a:1") == wanted
    assert chains(DIFFS)[-1].encode() in b" ".join(index(store).names())


def test_a_stopped_containers_layers_are_found_by_its_id(store: Path) -> None:
    top = Path(filesystem.container("stopped").layers[0])
    snapshots = index(store)
    (key,) = [name for name in snapshots.names() if name.endswith(VIEW.encode())]
    assert top.parts[-2] == str(snapshots.bucket(key).value(b"id")[0])


def test_an_image_that_is_not_unpacked_or_not_whole_says_so(store: Path) -> None:
    with pytest.raises(CannotRead, match="keeps layers packed, and no container of it runs"):
        filesystem.layers("packed:1")
    (store / "snapshots" / FOLDERS[1] / "fs").rmdir()
    with pytest.raises(CannotRead, match=r"snapshots/8/fs, which is not there"):
        filesystem.layers("a:1")


def test_docker_on_overlay2_is_taken_at_its_word() -> None:
    row = {"GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": "/c", "LowerDir": "/b:/a"}}}
    assert layer_folders.of_image(row) == layer_folders.of_container(row) == ["/c", "/b", "/a"]


def test_the_whole_index_is_read_through_its_branches(store: Path) -> None:
    names = index(store).names()
    assert len(names) == 161 == len(set(names)) and names == sorted(names)
    assert sum(b"rigbook-test-" in name for name in names) == 150


def test_the_newer_of_two_whole_meta_pages_counts(store: Path) -> None:
    path = store / "metadata.db"
    raw = bytearray(path.read_bytes())
    states = [boltdb._newest(bytes(raw), at) for at in (0, 4096)]
    assert None not in states and states[0] != states[1]
    newer = 0 if states[0] > states[1] else 4096
    before = index(store).names()
    # as after a power cut in the middle of its write
    raw[newer + 60] ^= 0xFF
    path.write_bytes(raw)
    assert index(store).names() != before, "the older state has one snapshot less"
    raw[4096 - newer + 60] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(CannotRead, match="no index that can be read"):
        index(store)


def test_an_index_that_is_cut_or_damaged_says_so(store: Path) -> None:
    path = store / "metadata.db"
    raw = path.read_bytes()
    for left, said in ((raw[: 5 * 4096], "is damaged"),
                       (raw[: 2 * 4096] + bytes(len(raw) - 2 * 4096),
                        "is damaged: a page of kind 0")):  # fmt: skip
        path.write_bytes(left)
        with pytest.raises(CannotRead, match=said):
            index(store)
    path.unlink()
    with pytest.raises(CannotRead, match="No such file"):
        index(store)


def test_an_index_that_changes_meanwhile_is_read_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read between two different looks at the meta pages is not one state."""
    real, calls = boltdb._meta, []

    def meta(raw: bytes) -> Any:
        calls.append(len(raw))
        found = real(raw)
        return (found[0] + 1, *found[1:]) if found and len(calls) == 2 else found

    monkeypatch.setattr(boltdb, "_meta", meta)
    assert len(index(store).names()) == 161 and len(calls) == 4
