"""The docker section against an Engine API that answers from recorded shapes, on a unix socket."""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import io
import json
import socket
import struct
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from node import snapshot
from node.core import proc
from node.core.dirfd import BLOCK
from node.core.errors import CannotRead, NodeError
from node.docker import api
from node.docker import store as docker_store
from node.docker.store import overlay2_chains
from schema.snapshot import Docker as snapshot_Docker
from schema.snapshot import NodeSnapshot, Unreadable
from tests.unit.node.support.host import at_most
from tests.unit.node.support.transfers import DockerSocket, docker_socket, http_answer

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


def take(*images: str) -> snapshot_Docker | Unreadable:
    """The typed docker section."""
    return NodeSnapshot.model_validate(snapshot.collect({"images": list(images)})).docker


def test_images_and_containers(engine: Path) -> None:
    seen = take("reg.local/vllm:1", "absent:1")
    assert isinstance(seen, snapshot_Docker), seen
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
    assert isinstance(seen, snapshot_Docker), seen
    # no service of its own has a content store there: docker starts a containerd below its root
    assert seen.containerd == "/var/lib/docker/containerd/daemon"
    assert (seen.store, seen.images[0].size) == ("containerd/overlayfs", 20024998 - 20134)
    (tmp_path / "io.containerd.content.v1.content").mkdir()
    whole = NodeSnapshot.model_validate(snapshot.collect({"images": []}))
    assert isinstance(whole.docker, snapshot_Docker) and whole.docker.store_root == str(tmp_path)
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


# Which units hold a container by a docker client: a real process, its unit a stand-in.

ID = "badbad1111111111111111111111111111111111111111111111111111111111"
SEED = "vllm-ds4-head.service"


@pytest.fixture
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that calls itself docker with the words of the row, and is of the seed's unit."""
    argv = ["docker", *request.param]
    started = subprocess.Popen(
        ["bash", "-c", 'exec -a docker python3 -c "import sys; sys.stdin.read()" "$@"', *argv],
        stdin=subprocess.PIPE,
    )
    real = proc.cgroup
    monkeypatch.setattr(
        proc, "argv", lambda pid, of=proc.argv: tuple(argv) if pid == started.pid else of(pid)
    )
    monkeypatch.setattr(
        proc, "cgroup", lambda pid: f"/system.slice/{SEED}" if pid == started.pid else real(pid)
    )
    yield
    started.communicate()


@pytest.mark.parametrize(("client", "held"), [
    (["exec", "vllm_ds4", "/workspace/vllm-head.sh"], [SEED]),
    (["exec", ID[:12], "bash"], [SEED]), (["start", "--attach", "vllm_ds4"], [SEED]),
    (["logs", "-f", "vllm_ds4"], []), (["exec", "vllm_ds4_other", "x"], []),
], indirect=["client"])  # fmt: skip
def test_a_docker_exec_of_a_unit_holds_the_container(client: None, held: list[str]) -> None:
    """By its name or its id; one that only reads holds nothing."""
    assert api.units_of(api.docker_clients(), "vllm_ds4", ID) == held


# The unit's own container: removed and stopped through docker's socket, quietly.

Docker = Callable[..., AbstractContextManager[DockerSocket]]
PING = "GET /_ping"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Starts a stand-in for docker's socket that gives these statuses in turn, after each ping."""
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(api, "SOCKET", str(path))

    def running(*statuses: int) -> AbstractContextManager[DockerSocket]:
        left = list(statuses)

        def reply(asked: str) -> bytes:
            if asked == PING:
                return http_answer(200, None)
            status = left.pop(0) if len(left) > 1 else left[0]
            return http_answer(status, None if status == 204 else {"message": "busy"})

        return docker_socket(path, reply)

    return running


def test_removing_a_container(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    with docker(404) as none:
        assert api.remove_container("rigbook-engine") is False
        assert none.seen == [PING, "DELETE /containers/rigbook-engine?force=true"]
    with docker(204):
        assert api.remove_container("rigbook-engine") is True
    with docker(409, 404) as going:
        assert api.remove_container("rigbook-engine") is True and len(going.seen) == 3
    monkeypatch.setattr(api, "REMOVE_TIMEOUT_S", 0.1)
    with docker(500), pytest.raises(NodeError, match="docker rm -f rigbook-engine: 500 busy"):
        api.remove_container("rigbook-engine")


def test_stopping_a_container(docker: Docker) -> None:
    for status, stopped in ((204, True), (304, False), (404, False)):
        with docker(status) as asked:
            assert api.stop_container("rigbook-engine", 30) is stopped
            assert asked.seen == [PING, "POST /containers/rigbook-engine/stop?t=30"]
    with docker(500), pytest.raises(NodeError, match="docker stop"):
        api.stop_container("rigbook-engine", 30)


def test_docker_that_is_not_there(docker: Docker) -> None:
    assert api.daemon_answers() is False
    with pytest.raises(CannotRead, match=r"docker at .*docker.sock"):
        api.is_running("x")
    with pytest.raises(CannotRead, match="docker does not answer"):
        api.remove_container("x")
    with docker(200):
        assert api.daemon_answers() is True


@pytest.mark.parametrize(
    "change", [api.remove_container, lambda name: api.stop_container(name, 30)]
)
def test_a_docker_that_died_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], bool]
) -> None:
    """docker.socket takes connections meanwhile; docker's restart waits for the caller's unit."""
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(api, "SOCKET", str(path))
    monkeypatch.setattr(api, "PING_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(path))
        nobody.listen()
        started = time.monotonic()
        with pytest.raises(CannotRead, match="docker does not answer"):
            change("rigbook-engine")
    assert time.monotonic() - started < 10


# A bbolt file that is damaged so that its pages lead in circles, or claim each other's bytes.

PAGE = 4096
BRANCH, LEAF = 1, 2


def meta(root: int, page_size: int = PAGE) -> bytes:
    head = struct.pack("<IIIIQQQQQ", 0xED0CDAED, 2, page_size, 0, root, 0, 0, 9, 1)
    return page(4, 0, head + struct.pack("<Q", docker_store._fnv(head)))


def page(kind: int, count: int, body: bytes, overflow: int = 0) -> bytes:
    return (struct.pack("<QHHI", 0, kind, count, overflow) + body).ljust(PAGE, b"\0")


def branch(*children: int) -> bytes:
    return page(BRANCH, len(children), b"".join(struct.pack("<IIQ", 0, 0, n) for n in children))


CASES = {
    "a page that leads to itself": [branch(*[2] * 200)],
    "two pages that lead to each other": [branch(*[3] * 200), branch(*[2] * 200)],
    "a deep tree that shares its pages": [branch(*[n + 3] * 200) for n in range(20)]
    + [page(LEAF, 0, b"")],
    "values that are the whole file": [
        page(LEAF, 250, struct.pack("<IIII", 0, 16, 0, 48 << 20) * 250, (50 << 20) // PAGE),
        bytes(50 << 20),
    ],
    "pages that are the rest of the file": [
        branch(*range(3, 203)), *[page(LEAF, 0, b"", overflow=(50 << 20) // PAGE)] * 200,
        bytes(50 << 20),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_damaged_is_told_and_not_followed_for_ever(name: str, tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"".join([meta(2), meta(2), *CASES[name]]))
    with at_most(10), pytest.raises(CannotRead, match="is damaged"):
        docker_store.read_boltdb(str(path))


@pytest.mark.parametrize("size", [0, 1, 16, 100, 1 << 31])
def test_a_page_size_that_none_has_is_damage(size: int, tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(meta(2, size) + meta(2, size) + page(LEAF, 0, b""))
    with at_most(10), pytest.raises(CannotRead):
        docker_store.read_boltdb(str(path))


# What dockers of five generations answer (dockers.yaml), on a unix socket.
#
# The double checks the version in a path as moby does: a request above or below what it speaks is
# answered with 400.

DOCKERS = yaml.safe_load(Path(__file__).with_name("dockers.yaml").read_text())["dockers"]
DOCKERS_IMAGE = "engine:1"
NAMED = "/var/lib/containerd"


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _answer(said: dict[str, Any]) -> Callable[[str], bytes]:
    """A docker that says this."""

    def reply(asked: str) -> bytes:
        path, version = asked.removeprefix("GET "), _number(said["api"])
        if path.startswith("/v"):
            wanted, _, rest = path[2:].partition("/")
            path, version = f"/{rest}", _number(wanted)
            if not _number(said["min_api"]) <= version <= _number(said["api"]):
                words = "new" if version > _number(said["api"]) else "old"
                return http_answer(400, {"message": f"client version {wanted} is too {words}."})
        left_out = said.get("from_1_52", ()) if version >= (1, 52) else ()
        row = {key: value for key, value in said["image"].items() if key not in left_out}
        answers = {"/info": said["info"], f"/images/{DOCKERS_IMAGE}/json": row}
        answers |= {"/containers/json": [], "/containers/json?all=1": []}
        found = path.startswith("/images/json?") or path in answers
        return http_answer(200, answers.get(path, [])) if found else http_answer(404, {})

    return reply


@pytest.fixture(params=DOCKERS, ids=[row["docker"] for row in DOCKERS])
def said(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """A docker of the table, which answers on its socket."""
    path, said = tmp_path / "docker.sock", copy.deepcopy(request.param)
    for name, text in said.get("specs", {}).items():
        (tmp_path / name).write_text(text)
        said["info"]["CDISpecDirs"] = [str(tmp_path)]
    monkeypatch.setattr(api, "SOCKET", str(path))
    with docker_socket(path, _answer(said)) as server:
        said["seen"] = server.seen
        yield said


def test_an_images_layers_are_found(said: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """overlay2's folders as docker tells them, containerd's by the image's chain id."""
    monkeypatch.setattr(docker_store, "_in_containerd", lambda root, name: [f"{root} {name}"])
    monkeypatch.setattr(api, "containerd", lambda info: NAMED if "overlayfs" in str(info) else None)
    if "layers" in said:
        assert docker_store.layers(DOCKERS_IMAGE) == said["layers"]
    elif "snapshot" in said:
        assert docker_store.layers(DOCKERS_IMAGE) == [f"{NAMED} {said['snapshot']}"]
    else:
        with pytest.raises(CannotRead, match="no container of it runs"):
            docker_store.layers(DOCKERS_IMAGE)


def test_an_older_version_is_asked_for_only_where_that_helps(said: dict[str, Any]) -> None:
    """Never above what the docker speaks: it is asked at its own version first."""
    row = api.inspection(f"/images/{DOCKERS_IMAGE}/json")
    left_out = "GraphDriver" not in said["image"] or "from_1_52" in said
    asked = [f"GET /images/{DOCKERS_IMAGE}/json"] + [
        f"GET /v1.51/images/{DOCKERS_IMAGE}/json"
    ] * left_out
    assert said["seen"] == asked
    answered = _number(said["min_api"]) <= (1, 51)
    assert ("GraphDriver" in row) == ("GraphDriver" in said["image"] and answered)
    assert api.inspection("/images/absent/json") is None


def test_the_section_is_read(said: dict[str, Any]) -> None:
    seen = snapshot_Docker.model_validate(json.loads(json.dumps(api.read_docker([DOCKERS_IMAGE]))))
    assert seen.version == said["info"]["ServerVersion"]
    assert [image.id for image in seen.images] == [said["image"]["Id"]]
    assert (seen.containerd is None) == (said["info"]["Driver"] == "overlay2")
    assert set(seen.runtimes) == set(said["info"]["Runtimes"])
    assert seen.default_runtime == said["info"]["DefaultRuntime"]
    assert list(seen.cdi_devices) == said.get("cdi", [])


@pytest.mark.parametrize("there", [(), api.HOOKS[:1], api.HOOKS])
def test_the_toolkits_hooks_are_on_dockers_own_path(
    there: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in there:
        (tmp_path / name).touch(0o755)
    with subprocess.Popen(["/bin/sleep", "60"], env={"PATH": f"/none:{tmp_path}"}) as dockerd:
        (tmp_path / "pid").write_text(f"{dockerd.pid}\n")
        monkeypatch.setattr(api, "PID_FILE", str(tmp_path / "pid"))
        found = api.gpu_access({})["gpu_hooks"]
        dockerd.kill()
    assert found == list(there)
    monkeypatch.setenv("PATH", str(tmp_path))
    for unread in ("absent", "text"):
        (tmp_path / "text").write_text("none\n")
        monkeypatch.setattr(api, "PID_FILE", str(tmp_path / unread))
        assert api.gpu_access({})["gpu_hooks"] == list(there), "ours, where docker's is not told"


# Where a store keeps layers: docker's own words, and a real index of containerd's snapshotter.
#
# tests/fixtures/containerd/snapshots.db.gz is the index of a rehearsal host (containerd 1.7.24,
# made
# by `python -m lab up --containerd`): 161 snapshots, in pages below pages.

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


def index(home: Path) -> docker_store.Bucket:
    """The snapshots of the index."""
    return docker_store.read_boltdb(str(home / "metadata.db")).bucket(b"v1", b"snapshots")


def test_an_images_layers_are_found_topmost_first(store: Path) -> None:
    wanted = [str(store / "snapshots" / number / "fs") for number in FOLDERS]
    assert docker_store.layers("a:1") == wanted
    assert overlay2_chains(DIFFS)[-1].encode() in b" ".join(index(store).names())


def test_a_stopped_containers_layers_are_found_by_its_id(store: Path) -> None:
    top = Path(docker_store.container_tree("stopped").layers[0])
    snapshots = index(store)
    (key,) = [name for name in snapshots.names() if name.endswith(VIEW.encode())]
    assert top.parts[-2] == str(snapshots.bucket(key).value(b"id")[0])


def test_an_image_that_is_not_unpacked_or_not_whole_says_so(store: Path) -> None:
    with pytest.raises(CannotRead, match="keeps layers packed, and no container of it runs"):
        docker_store.layers("packed:1")
    (store / "snapshots" / FOLDERS[1] / "fs").rmdir()
    with pytest.raises(CannotRead, match=r"snapshots/8/fs, which is not there"):
        docker_store.layers("a:1")


def test_docker_on_overlay2_is_taken_at_its_word() -> None:
    row = {"GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": "/c", "LowerDir": "/b:/a"}}}
    assert docker_store.of_image(row) == docker_store.of_container(row) == ["/c", "/b", "/a"]


def test_the_whole_index_is_read_through_its_branches(store: Path) -> None:
    names = index(store).names()
    assert len(names) == 161 == len(set(names)) and names == sorted(names)
    assert sum(b"rigbook-test-" in name for name in names) == 150


def test_the_newer_of_two_whole_meta_pages_counts(store: Path) -> None:
    path = store / "metadata.db"
    raw = bytearray(path.read_bytes())
    states = [docker_store._newest(bytes(raw), at) for at in (0, 4096)]
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
    real, calls = docker_store._meta, []

    def meta(raw: bytes) -> Any:
        calls.append(len(raw))
        found = real(raw)
        return (found[0] + 1, *found[1:]) if found and len(calls) == 2 else found

    monkeypatch.setattr(docker_store, "_meta", meta)
    assert len(index(store).names()) == 161 and len(calls) == 4


# Layers out of docker's store: byte for byte, from any offset, and nothing from outside of it.

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


def overlay2_store(root: Path, raw: bytes, names: dict[str, str] | None = None) -> tuple[str, str]:
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
    folder = Path(docker_store.folder_of(str(root), diff))
    folder.mkdir(parents=True)
    (folder / "cache-id").write_text(CACHE)
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in split)
    (folder / "tar-split.json.gz").write_bytes(gzip.compress(lines))
    return diff, diff


SIZES = {"a": 3 * BLOCK + 5, "dir/b": 0, "dir/ünicode": 700, "dir/c": BLOCK}


@pytest.mark.parametrize("offset", [0, 1, 511, 512, 1000, BLOCK, 3 * BLOCK + 600, 4 * BLOCK + 3000])
def test_a_layer_comes_byte_for_byte_from_any_offset(tmp_path: Path, offset: int) -> None:
    raw = made_tar(SIZES)
    layer = docker_store.Layer(str(tmp_path), *overlay2_store(tmp_path, raw))
    assert layer.size() == len(raw)
    blocks = [bytes(block) for block in layer.blocks(offset)]
    assert b"".join(blocks) == raw[offset:]
    assert all(len(block) == BLOCK for block in blocks[:-1]) and len(blocks[-1]) <= BLOCK


def test_nothing_comes_from_outside_of_the_layer(tmp_path: Path) -> None:
    """A layer that holds a link to / must not give the host's own files to a peer."""
    where = overlay2_store(tmp_path, made_tar({"evil/passwd": 100}), {"evil/passwd": "way/passwd"})
    (tmp_path / "overlay2" / CACHE / "diff" / "way").symlink_to("/etc")
    with pytest.raises(NodeError, match="leads out of layer"):
        list(docker_store.Layer(str(tmp_path), *where).blocks())
    where = overlay2_store(tmp_path / "2", made_tar({"passwd": 100}))
    file = tmp_path / "2" / "overlay2" / CACHE / "diff" / "passwd"
    file.unlink()
    file.symlink_to("/etc/passwd")
    with pytest.raises((NodeError, OSError)):
        list(docker_store.Layer(str(tmp_path / "2"), *where).blocks())
    raw = made_tar({"x": 100})
    layer = docker_store.Layer(
        str(tmp_path / "3"), *overlay2_store(tmp_path / "3", raw, {"x": "../../../../x"})
    )
    assert b"".join(map(bytes, layer.blocks())) == raw, "dots in a name stay inside"


def test_a_file_that_changed_is_told(tmp_path: Path) -> None:
    raw = made_tar({"a": 1000})
    where = overlay2_store(tmp_path, raw)
    (tmp_path / "overlay2" / CACHE / "diff" / "a").write_bytes(b"short")
    with pytest.raises(NodeError, match="changed"):
        list(docker_store.Layer(str(tmp_path), *where).blocks())


def test_layers_that_are_there_are_counted_from_the_lowest(tmp_path: Path) -> None:
    diff, _ = overlay2_store(tmp_path, made_tar({"a": 10}))
    other = "sha256:" + "2" * 64
    assert docker_store.present(str(tmp_path), [diff, other]) == 1
    assert docker_store.present(str(tmp_path), [other, diff]) == 0
    with pytest.raises(NodeError):
        docker_store.present(str(tmp_path), ["../../etc"])
    # moby's layer.CreateChainID: the first is the diff id; the next hashes both
    second = hashlib.sha256(f"{diff} {other}".encode()).hexdigest()
    assert docker_store.overlay2_chains([diff, other]) == [diff, f"sha256:{second}"]
