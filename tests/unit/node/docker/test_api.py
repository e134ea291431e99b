"""The docker section against an Engine API that answers from recorded shapes, on a unix socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.docker import api
from node.snapshot import collect as snapshot_collect
from schema.observed.docker import Docker
from schema.observed.snapshot import NodeSnapshot, Unreadable
from tests.unit.node.support.servers import docker_socket, http_answer

IMAGE = {
    "Id": "sha256:aa", "RepoTags": ["vllm:1"], "RepoDigests": ["vllm@sha256:bb"], "Size": 9,
    "Architecture": "arm64", "Os": "linux", "RootFS": {"Layers": ["sha256:l1", "sha256:l2"]},
    "Config": {"Cmd": ["serve"], "Env": ["A=1"], "Hostname": "x", "Labels": None},
}  # fmt: skip
CONTAINER = {
    "Id": "c" * 64, "Name": "/engine", "Image": "sha256:aa", "Path": "vllm",
    "Args": ["serve", "m", "--api-key", "hunter2"], "RestartCount": 2,
    "State": {"Status": "running", "ExitCode": 0, "Pid": 42},
    "Config": {"Image": "vllm:1", "Env": ["VLLM_X=1", "HF_TOKEN=hunter2", "PATH=/"],
               "Labels": {"rigbook.change": "c1", "auth": "hunter2"}},
    "HostConfig": {"RestartPolicy": {"Name": ""}, "NetworkMode": "host", "IpcMode": "host",
                   "Privileged": False, "Init": True},
    "Mounts": [{"Source": "/srv/m", "Destination": "/m", "RW": False}],
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "/info": {"ServerVersion": "28.1", "Driver": "overlay2", "DockerRootDir": "/var/lib/docker"},
    "/images/reg.local/vllm:1/json": IMAGE,
    "/containers/json?all=1": [{"Id": "c" * 64}, {"Id": "gone"}],
    f"/containers/{'c' * 64}/json": CONTAINER,
}


def answered(asked: str) -> bytes:
    """The answer of ANSWERS, else 404."""
    path = asked.removeprefix("GET ")
    found = (200, ANSWERS[path]) if path in ANSWERS else (404, {"message": "no"})
    return http_answer(*found)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket of a running Engine API."""
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(api, "SOCKET", str(path))
    with docker_socket(path, answered):
        yield path


def take(*images: str) -> Docker | Unreadable:
    """The typed docker section."""
    return NodeSnapshot.model_validate(snapshot_collect.collect({"images": list(images)})).docker


def test_images_and_containers(engine: Path) -> None:
    seen = take("reg.local/vllm:1", "absent:1")
    assert isinstance(seen, Docker), seen
    assert (seen.version, seen.storage_driver, seen.root) == ("28.1", "overlay2", "/var/lib/docker")
    assert [image.layers for image in seen.images] == [("sha256:l1", "sha256:l2")]
    (row,) = seen.containers
    assert (row.name, row.pid, row.restart_policy, row.init) == ("engine", 42, "no", True)
    assert row.argv == ("vllm", "serve", "m", "--api-key", "***")
    assert row.environ == {"VLLM_X": "1", "HF_TOKEN": "***"}
    assert row.labels == {"rigbook.change": "c1", "auth": "***"}
    assert row.mounts[0].read_only is True and "hunter2" not in seen.model_dump_json()


def test_the_containerd_store_is_named_with_its_folder_and_the_unpacked_size(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Docker 26.1 answered: 20 MB of zeros, which came compressed."""
    info = {**ANSWERS["/info"], "Driver": "overlayfs",
            "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}  # fmt: skip
    monkeypatch.setitem(ANSWERS, "/info", info)
    listed = "/images/json?filters=%7B%22reference%22%3A%20%5B%22vllm%3A1%22%5D%7D"
    monkeypatch.setitem(ANSWERS, "/images/reg.local/vllm:1/json", {**IMAGE, "Size": 20134})
    monkeypatch.setitem(ANSWERS, listed, [{"Id": "sha256:aa", "Size": 20024998}])
    monkeypatch.setattr(api, "_CONTAINERD_ROOT", str(tmp_path))
    seen = take("reg.local/vllm:1")
    assert isinstance(seen, Docker), seen
    # no service of its own has a content store there: docker starts a containerd below its root
    assert seen.containerd == "/var/lib/docker/containerd/daemon"
    assert (seen.store, seen.images[0].size) == ("containerd/overlayfs", 20024998 - 20134)
    (tmp_path / "io.containerd.content.v1.content").mkdir()
    whole = NodeSnapshot.model_validate(snapshot_collect.collect({"images": []}))
    assert isinstance(whole.docker, Docker) and whole.docker.store_root == str(tmp_path)
    assert not isinstance(whole.disks, Unreadable)
    assert {"/var/lib/docker", str(tmp_path)} <= {disk.path for disk in whole.disks}


def test_the_config_hash_does_not_depend_on_the_image_store() -> None:
    config = {"Cmd": ["serve"], "Env": ["A=1"], "Hostname": "", "Labels": {}, "Image": "sha256:q"}
    other = {**IMAGE, "Id": "sha256:zz", "Config": config}
    assert api.image(IMAGE)["config_sha256"] == api.image(other)["config_sha256"]
    changed = {**IMAGE, "Config": {**config, "Env": ["A=2"]}}
    assert api.image(IMAGE)["config_sha256"] != api.image(changed)["config_sha256"]


def test_an_engine_that_errs_is_unreadable(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ANSWERS, "/info")
    seen = take()
    assert isinstance(seen, Unreadable) and "answered 404 to /info" in seen.unreadable


@pytest.mark.parametrize("said", [
    b"", b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"HTTP/1.0 200 OK\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nContent-Length: x\r\n\r\n{}", b"{}",
])  # fmt: skip
def test_an_answer_that_is_cut_or_none_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    path = tmp_path / "cut.sock"
    monkeypatch.setattr(api, "SOCKET", str(path))
    with docker_socket(path, lambda asked: said):
        seen = take()
    assert isinstance(seen, Unreadable) and f"docker at {path}: " in seen.unreadable


def test_a_dead_socket_and_none_are_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SOCKET", str(tmp_path / "dead"))
    seen = take()
    assert isinstance(seen, Unreadable) and "not running" in seen.unreadable
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(api.SOCKET)
    seen = take()
    assert isinstance(seen, Unreadable) and "refused" in seen.unreadable
