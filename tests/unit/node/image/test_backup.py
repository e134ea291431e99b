"""image backup and image restore: an image whose registry has deleted it comes back, whole."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.backup import store, verify
from node.backup.listing import list_all, prune
from node.change import close, journal, undo
from node.copies import others
from node.copies.copy import copy, take
from node.core import signals
from node.core.errors import NodeError
from node.docker import api
from node.image import load, restore, stores
from node.image.backup import backup
from node.restore import restore as tree_restore
from node.rules.oci_layout import blob
from tests.unit.node.support.content_store import Docker
from tests.unit.node.support.host import Host, change

TAG = "rigbook/nightly:1"
LAYERS = [b"compressed lower" * 1000, os.urandom(3 << 20)]
DIFF_IDS = ["sha256:" + "1" * 64, "sha256:" + "2" * 64]
CONFIG = {"config": {"Cmd": ["vllm"]}, "architecture": "amd64", "os": "linux"}


@pytest.fixture
def docker(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """A docker with one nightly, under a tag."""
    made = Docker(tmp_path)
    monkeypatch.setattr(api, "SOCKET", made.socket)
    monkeypatch.setattr(api, "_CONTAINERD_ROOT", str(made.store.root))
    made.have(made.store.manifest(DIFF_IDS, LAYERS, **CONFIG), TAG)
    yield made
    made.end()


def nightly(docker: Docker) -> str:
    """The name by digest that a recipe gives it."""
    return f"rigbook/nightly@{docker.names[TAG]}"


def verified(reference: str = TAG, **more: object) -> str:
    """A backup that was stored and read back."""
    made = backup({"image": reference, **more})
    assert made["stored"], made
    assert verify.verify({"backup": made["backup"]})["backup"] == made["backup"]
    return str(made["backup"])


def restored(name: str = "change-1", **more: object) -> dict[str, Any]:
    """A restore that worked."""
    return restore.restore({"change": change(name), **more})


def test_a_nightly_that_its_registry_deleted_comes_back_by_its_digest(docker: Docker) -> None:
    wanted, image = nightly(docker), docker.names[TAG]
    made = verified(wanted)
    (row,) = list_all({})["backups"]
    assert (row["tree"], row["real"]) == (wanted, "rigbook/nightly")
    assert row["image"]["id"] == image and row["members"] == 10
    docker.lose()
    plan = restore.restore({"dry": True})
    assert (plan["changed"], plan["unpacks"], plan["change"]) == (True, True, None)
    assert "docker has no image" in plan["detail"] and docker.loads == 0
    answer = restored(backup=made)
    assert answer["changed"] and answer["loaded"] and docker.loads == 1
    assert docker.resolve(wanted) == image
    assert [docker.store.path(n).read_bytes() for n in docker.images] != []
    assert close.close({"change": answer["change"], "status": "COMMITTED"})["changed"]
    again = restored("change-2", backup=made)
    assert (again["changed"], again["change"]) == (False, None) and docker.loads == 1


def test_the_same_image_is_not_stored_twice(docker: Docker, host: Host) -> None:
    made = verified()
    for request in ({"image": TAG}, {"image": TAG, "dry": True}):
        answer = backup(request)
        assert (answer["backup"], answer["stored"]) == (made, False)
    # another file beside it: a backup of its own, which shares the payload
    unit = host.file("engine.service", "[Service]\n")
    second = verified(files=[str(unit)])
    one, other = (Path(store.of(i, store.PAYLOAD)) for i in (made, second))
    assert one.samefile(other)
    assert backup({"image": TAG, "files": [str(unit)]})["backup"] == second
    # another image under the tag: a payload of its own, and the older one may be pruned
    docker.have(docker.store.manifest(DIFF_IDS, [LAYERS[0], b"other"], **CONFIG), TAG)
    third = verified()
    assert not one.samefile(store.of(third, store.PAYLOAD))
    assert [row["id"] for row in prune({"keep": 1})["removed"]] == [second, made]
    assert [row["id"] for row in list_all({})["backups"]] == [third]


def test_the_payload_is_what_docker_load_takes(docker: Docker) -> None:
    """From a rescue disk: zstd -d | docker load."""
    made = verified()
    raw = subprocess.run(
        ["zstd", "-dc", store.of(made, store.PAYLOAD)], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        said = json.loads((tar.extractfile("manifest.json") or io.BytesIO()).read())
        (index,) = json.loads((tar.extractfile("index.json") or io.BytesIO()).read())["manifests"]
        names = said[0]["Layers"]
        assert [(tar.extractfile(n) or io.BytesIO()).read() for n in names] == LAYERS
        assert index["digest"] == docker.names[TAG] and blob(index["digest"]) in tar.getnames()


def test_unit_and_launch_files_come_back_and_undo_gives_back_what_lay_there(
    docker: Docker, host: Host
) -> None:
    unit = host.file("engine.service", "as it was\n", 0o640)
    made = verified(files=[str(unit)])
    other = docker.have(docker.store.manifest(DIFF_IDS[:1], LAYERS[:1], **CONFIG), TAG)
    unit.write_text("of a newer recipe\n")
    answer = restored(backup=made)
    assert answer["files"] == [f"write {unit}"] and answer["loaded"] is False
    assert unit.read_text() == "as it was\n" and docker.names[TAG] != other
    assert docker.names[f"rigbook-kept:{other[7:19]}"] == other
    undone = undo.undo({"change": answer["change"]})
    assert undone["status"] == "ROLLED_BACK", undone
    assert unit.read_text() == "of a newer recipe\n" and docker.names[TAG] == other


def test_a_layer_that_was_edited_in_the_store_is_not_kept(docker: Docker) -> None:
    image = docker.store.read(docker.names[TAG])
    path = docker.store.path(image["layers"][1]["digest"])
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(NodeError, match="has other bytes than were recorded") as caught:
        backup({"image": TAG})
    assert caught.value.code == "image_store" and "docker's store" in str(caught.value)
    assert [*Path(store.folder()).iterdir()] == []
    path.unlink()
    with pytest.raises(NodeError, match="is not whole"):
        backup({"image": TAG})


def test_a_payload_with_a_flipped_bit_is_found_and_never_becomes_an_image(docker: Docker) -> None:
    made = verified()
    path = Path(store.of(made, store.PAYLOAD))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    docker.lose()
    with pytest.raises(NodeError) as caught:
        restored(backup=made)
    assert caught.value.code == "backup_damaged", caught.value
    assert docker.images == set() and docker.names == {}
    assert not journal.read_all()[0]
    with pytest.raises(NodeError):
        verify.verify({"backup": made})
    with pytest.raises(NodeError, match="there is no verified backup"):
        restored()


def test_a_backup_that_is_ended_leaves_nothing_and_a_restore_goes_on(
    docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter([0, 15])
    monkeypatch.setattr(signals, "interrupted", lambda: next(ends, 0))
    with pytest.raises(NodeError, match="nothing of the backup is left"):
        backup({"image": TAG})
    assert [*Path(store.folder()).iterdir()] == []
    made = verified()
    docker.lose()
    # in the middle of the load; the change stays OPEN, and the same one goes on
    ends = iter([0, 0, 15])
    with pytest.raises(NodeError):
        restored(backup=made)
    assert docker.images == set()
    assert restored(backup=made)["changed"] and docker.resolve(TAG) in docker.images


def test_what_lies_half_done_is_swept_and_no_backup(docker: Docker) -> None:
    made = verified()
    half = Path(store.folder()) / (made[:-4] + "ffff" + store.PARTIAL)
    half.mkdir()
    (half / store.PAYLOAD).write_bytes(b"half")
    assert [row["id"] for row in list_all({})["backups"]] == [made]
    backup({"image": TAG})
    assert not half.exists()


def test_it_comes_back_from_a_copy_on_another_disk(docker: Docker, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    try:
        made = verified()
        assert copy({"to": str(disk)})["made"] is True
        (listed,), (seen,) = list_all({})["backups"], others.copies({})["noted"]
        assert seen["is_here"] and seen["image"] == listed["image"]
        shutil.rmtree(store.folder())
        docker.lose()
        assert take({"backup": made, "from": str(disk)})["backup"] == made
        assert restored(backup=made)["loaded"] and docker.resolve(TAG)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_what_each_verb_takes(docker: Docker, host: Host) -> None:
    made = verified()
    with pytest.raises(NodeError, match="is of an image") as caught:
        tree_restore.restore({"backup": made})
    assert "image restore" in caught.value.remedy
    with pytest.raises(NodeError, match="there is no verified backup"):
        tree_restore.restore({})
    for request, words in (
        ({"image": "rigbook/none:1"}, "no image"), ({"image": "-rf"}, "image"), ({}, "image"),
    ):  # fmt: skip
        with pytest.raises(NodeError, match=words):
            backup(request)


def test_a_name_by_digest_that_docker_will_not_take_is_refused_before_anything(
    docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docker's own store knows such a name from a pull alone."""
    wanted = nightly(docker)
    made = verified(wanted)
    docker.lose()
    monkeypatch.setattr(stores, "find", lambda: stores.Store("/", False))
    with pytest.raises(NodeError, match="from its registry") as caught:
        restored(backup=made)
    assert "zstd -dc" in caught.value.remedy and "docker load" in caught.value.remedy
    assert docker.loads == 0 and not journal.read_all()[0]


def test_weights_that_are_not_as_they_were_are_told(docker: Docker, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(b"x" * 10)
    made = verified(weights=str(folder))
    rows = store.load(made)["facts"]["weights"]["files"]
    assert rows[0] == {"name": "a.safetensors", "size": 10, "sha256": None}
    (folder / "a.safetensors").unlink()
    (folder / "b.safetensors").write_bytes(b"x" * 11)
    said = restore.restore({"backup": made, "dry": True})["weights"]
    assert said == [
        f"{folder}/a.safetensors is gone", f"{folder}/b.safetensors has 11 bytes, it had 10"
    ]  # fmt: skip
    assert load.inspect(TAG) is not None
