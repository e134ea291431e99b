"""What the operator sees of a transfer while it runs: each new line of the node's, once."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from operations import image, transfer


def test_the_nodes_lines_are_shown_as_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that fails, or finds no file or half of one, says nothing and ends nothing."""
    looks = ["", '{"line"', *(json.dumps({"line": x}) for x in ("25 %", "25 %", "75 %"))]
    shown: list[str] = []

    def look(*_: Any, **__: Any) -> Any:
        if not looks:
            raise gevent.GreenletExit
        return True, SimpleNamespace(stdout_lines=looks.pop(0).splitlines())

    monkeypatch.setattr(transfer, "run_as_root", look)
    monkeypatch.setattr(transfer, "LOOK_EVERY_S", 0)
    host: Any = SimpleNamespace(log=shown.append, data={}, run_shell_command=None)
    run: Any = SimpleNamespace(state=None)
    with pytest.raises(gevent.GreenletExit):
        transfer.watch(run, host, "image")
    assert shown == ["25 %", "75 %"]


def test_each_end_of_a_transfer_is_bound_to_its_own_device() -> None:
    devices = {"spark1": "enp1s0f0np0", "spark2": "enp1s0f1np1"}
    addresses = {"spark1": "10.0.0.1", "spark2": "10.0.0.2"}
    route = transfer.Route(addresses, devices, 29680)
    listens = {"address": "10.0.0.1", "port": 29680}
    assert route.listen("spark1") == {**listens, "device": "enp1s0f0np0"}
    assert route.listen("spark1", "spark2") == {**listens, "device": "enp1s0f1np1"}
    assert route.words == "out of enp1s0f0np0, enp1s0f1np1"
    over_lan = transfer.Route(addresses, dict.fromkeys(devices), 29680)
    assert (over_lan.words, over_lan.listen("spark1")["device"]) == ("over the LAN", None)


# An operator's archive: what goes on is made anew, and what is odd is refused in one line.

LAYER = b"x" * 3000
CONFIG = json.dumps(
    {
        "architecture": "amd64",
        "rootfs": {"diff_ids": ["sha256:" + hashlib.sha256(LAYER).hexdigest()]},
    }
).encode()
MANIFEST: list[dict[str, Any]] = [
    {"Config": "c.json", "RepoTags": ["evil/latest:1"], "Layers": ["l/layer.tar"]}
]


def archive(path: Path, members: dict[str, Any]) -> Path:
    """A tar of these members; a value that is text is a link to it."""
    with tarfile.open(path, "w") as tar:
        for name, value in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(value, str):
                info.type, info.linkname = tarfile.SYMTYPE, value
                tar.addfile(info)
            else:
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
    return path


def parts(**changes: Any) -> dict[str, Any]:
    """A sound archive with changes; None leaves a member out."""
    members = {
        "c.json": CONFIG,
        "l/layer.tar": LAYER,
        "manifest.json": json.dumps(MANIFEST).encode(),
    }
    members.update(
        {name.replace("__", "/").replace("_json", ".json"): v for name, v in changes.items()}
    )
    return {name: value for name, value in members.items() if value is not None}


def test_only_what_the_manifest_names_goes_on_and_without_a_tag(tmp_path: Path) -> None:
    members = {**parts(), "repositories": b"{}", "extra": b"what nobody named"}
    found = image.read_archive(archive(tmp_path / "a.tar", members))
    assert found.arch == "amd64"
    assert found.image_id == "sha256:" + hashlib.sha256(CONFIG).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(b"".join(found.chunks()))) as tar:
        names = tar.getnames()
        listed = tar.extractfile("manifest.json")
        assert listed is not None
        manifest = json.load(listed)
        layer = tar.extractfile(manifest[0]["Layers"][0])
        assert layer is not None and layer.read() == LAYER
    assert manifest[0]["RepoTags"] is None and len(names) == 3
    assert "extra" not in names and "evil" not in json.dumps(manifest)


def test_a_layer_that_stands_twice_is_a_link_to_its_first_place(tmp_path: Path) -> None:
    manifest = [{**MANIFEST[0], "Layers": ["m/layer.tar"]}]
    members = parts(manifest_json=json.dumps(manifest).encode())
    members["m/layer.tar"] = "../l/layer.tar"
    found = image.read_archive(archive(tmp_path / "a.tar", members))
    assert found.layers[0][1] == len(LAYER)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({**parts(), "../../etc/cron.d/x": b"x"}, "leads out of it"),
        ({**parts(), "/etc/x": b"x"}, "leads out of it"),
        (parts(manifest_json=None), "lacks"),
        (parts(manifest_json=b"[]"), "holds 0 images"),
        (parts(manifest_json=json.dumps(MANIFEST * 2).encode()), "holds 2 images"),
        (parts(manifest_json=b"{"), "no docker archive"),
        (parts(manifest_json=b'[{"Config": 7}]'), "lacks"),
        (parts(l__layer="", **{"l__layer.tar": None}), "lacks"),
        ({**parts(), "l/layer.tar": "/etc/passwd"}, "leads out of it"),
        ({**parts(), "l/layer.tar": "../../../etc/passwd"}, "leads out of it"),
        (parts(c_json=b'{"rootfs": {"diff_ids": []}}'), "names 1 layers"),
        (
            parts(c_json=b'{"rootfs": {"diff_ids": ["sha256:../../../../etc/cron.d/x"]}}'),
            "is no digest",
        ),
        (parts(c_json=b'{"rootfs": {"diff_ids": ["sha256:' + b"A" * 64 + b'"]}}'), "is no digest"),
        (parts(c_json=b'{"rootfs": {"diff_ids": ["sha512:' + b"a" * 64 + b'"]}}'), "is no digest"),
        (parts(manifest_json=b"[" * 200_000), "no docker archive"),
        (parts(c_json=b"[" * 200_000), "no docker archive"),
        (parts(c_json=b"[]"), "no docker archive"),
    ],
)
def test_what_is_odd_is_refused(tmp_path: Path, members: dict[str, Any], said: str) -> None:
    with pytest.raises(image.BadArchive) as caught:
        image.read_archive(archive(tmp_path / "a.tar", members))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", parts())
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(image.BadArchive):
        image.read_archive(path)
    path.write_bytes(b"not a tar at all" * 100)
    with pytest.raises(image.BadArchive):
        image.read_archive(path)


def named(raw: bytes) -> str:
    """The member that has a blob."""
    return f"blobs/sha256/{hashlib.sha256(raw).hexdigest()}"


def digest(raw: bytes) -> str:
    """The digest of bytes, as images name it."""
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


PACKED = b"what the registry sent for the layer"
OF_REGISTRY = json.dumps(
    {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"digest": digest(CONFIG)},
        "layers": [{"digest": digest(PACKED), "size": len(PACKED)}],
    }
).encode()
# with an image for another processor, which the archive lacks
INDEX = json.dumps(
    {"manifests": [{"digest": f"sha256:{'0' * 64}"}, {"digest": digest(OF_REGISTRY)}]}
).encode()


def layout(top: bytes = INDEX, **changes: Any) -> dict[str, Any]:
    """What docker save of a containerd store writes."""
    manifest = [{"Config": named(CONFIG), "RepoTags": None, "Layers": [named(PACKED)]}]
    return {
        "oci-layout": b"{}",
        "index.json": json.dumps({"manifests": [{"digest": digest(top)}]}).encode(),
        "manifest.json": json.dumps(manifest).encode(),
        **{named(raw): raw for raw in (CONFIG, OF_REGISTRY, INDEX, PACKED)},
        **changes,
    }


@pytest.mark.parametrize("top", [INDEX, OF_REGISTRY])
def test_the_documents_of_a_registrys_image_go_on_so_that_its_digest_stays(
    tmp_path: Path, top: bytes
) -> None:
    found = image.read_archive(archive(tmp_path / "a.tar", layout(top)))
    found.check()
    assert (found.digest, found.image_id) == (digest(top), digest(CONFIG))
    made = archive(tmp_path / "b.tar", {})
    made.write_bytes(b"".join(found.chunks()))
    again = image.read_archive(made)
    again.check()
    assert (again.digest, again.documents) == (found.digest, found.documents)
    with tarfile.open(made) as tar:
        listed = json.load(tar.extractfile("index.json") or io.BytesIO())
        assert len(tar.getnames()) == len(set(tar.getnames()))
    assert [row["digest"] for row in listed["manifests"]] == [digest(top)]
    assert "annotations" not in listed["manifests"][0]


def test_an_archive_of_the_older_form_has_no_digest(tmp_path: Path) -> None:
    found = image.read_archive(archive(tmp_path / "a.tar", parts()))
    found.check()
    assert found.digest is None


@pytest.mark.parametrize("members", [
    {**parts(), "l/layer.tar": LAYER[:-1] + b"y"},
    layout(**{named(PACKED): PACKED[:-1] + b"y"}),
])  # fmt: skip
def test_a_layer_that_is_damaged_is_found_when_it_is_read(
    tmp_path: Path, members: dict[str, Any]
) -> None:
    found = image.read_archive(archive(tmp_path / "a.tar", members))
    with pytest.raises(image.BadArchive, match="is damaged"):
        found.check()


EVIL = json.dumps(
    {"config": {"digest": digest(CONFIG)}, "layers": [{"digest": "sha256:../x", "size": 1}]}
).encode()


@pytest.mark.parametrize(("members", "said"), [
    (layout(**{named(OF_REGISTRY): OF_REGISTRY + b" "}), "is not what its name says"),
    (layout(EVIL, **{named(EVIL): EVIL}), "by no digest"),
    (layout(**{named(PACKED): None}), "lacks"),
])  # fmt: skip
def test_documents_that_are_odd_are_refused(
    tmp_path: Path, members: dict[str, Any], said: str
) -> None:
    there = {name: value for name, value in members.items() if value is not None}
    with pytest.raises(image.BadArchive) as caught:
        image.read_archive(archive(tmp_path / "a.tar", there))
    assert said in str(caught.value)
