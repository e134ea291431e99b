"""An image read out of containerd's content store, and what is refused there."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import http.client
import io
import json
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.core.dirfd import BLOCK
from node.core.errors import NodeError
from node.docker import api, load, offer, receive
from node.docker.offer import Content
from node.rules.text import digest_of
from node.transfer import client, protocol, spool
from tests.unit.node.support import transfers
from tests.unit.node.support.host import change
from tests.unit.node.support.transfers import HERE, Ends, Store, answer, files

LAYERS = [b"compressed lower", bytes(range(256)) * (BLOCK // 128)]
DIFF_IDS = ["sha256:" + "1" * 64, "sha256:" + "2" * 64]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store(tmp_path)


def given(store: Store, name: str, layers: list[str] | None = None) -> Content:
    """The image of this digest, as a giver reads it."""
    return Content(str(store.root), {"id": name, "layers": layers or DIFF_IDS})


def listed(found: Content) -> list[str]:
    """The digests of the documents that it lists."""
    return [digest_of(base64.b64decode(row)) for row in found.listing()["documents"]]


def test_documents_and_layers_are_given_as_they_lie_there(store: Store) -> None:
    name = store.manifest(DIFF_IDS, LAYERS)
    found = given(store, name)
    assert listed(found)[0] == name and len(listed(found)) == 2
    assert found.listing()["blobs"] == [[digest_of(raw), len(raw)] for raw in LAYERS]
    for offset in (0, 5, BLOCK, len(LAYERS[1])):
        blocks = list(found.blocks(1, offset))
        assert b"".join(blocks) == LAYERS[1][offset:] and all(len(b) <= BLOCK for b in blocks)
    assert found.size(0) == len(LAYERS[0])
    assert found.sha256(0, lambda: None) == digest_of(LAYERS[0])[7:]


def test_of_an_index_the_image_of_these_layers_is_given(store: Store) -> None:
    """Of the images for other processors, and of attestations, a pull leaves the content out."""
    name = store.manifest(DIFF_IDS, LAYERS)
    other = store.manifest(["sha256:" + "3" * 64], [b"another processor's"])
    inner = store.document(manifests=[{"digest": "sha256:" + "9" * 64}, {"digest": name}])
    index = store.document(manifests=[{"digest": other}, {"digest": inner}])
    assert listed(given(store, index))[:3] == [index, inner, name]


def test_a_layer_that_is_there_twice_is_one_blob(store: Store) -> None:
    name = store.manifest([*DIFF_IDS, DIFF_IDS[0]], [*LAYERS, LAYERS[0]])
    found = given(store, name, [*DIFF_IDS, DIFF_IDS[0]])
    assert len(found.listing()["blobs"]) == 2


def test_an_index_that_names_itself_ends(store: Store) -> None:
    """No document can have its own digest in it; one that is damaged is refused before that."""
    deep = store.manifest(DIFF_IDS, LAYERS)
    for _ in range(6):
        deep = store.document(manifests=[{"digest": deep}])
    with pytest.raises(NodeError, match="no image"):
        given(store, deep)


@pytest.mark.parametrize(("name", "words"), [
    ("sha256:" + "0" * 64, "no image"), ("sha256:../../../../etc/passwd", "is not a digest"),
])  # fmt: skip
def test_a_name_that_is_no_image_is_refused(store: Store, name: str, words: str) -> None:
    with pytest.raises(NodeError, match=words):
        given(store, name)


def test_what_a_manifest_names_must_be_a_digest(store: Store) -> None:
    """A document may come from any registry: none of its names becomes a path as it is."""
    (store.root / "secret").write_text("secret")
    name = store.document(manifests=[{"digest": "sha256:../../../../secret"}])
    with pytest.raises(NodeError, match="is not a digest"):
        given(store, name)


@pytest.mark.parametrize("damage", ["cut", "gone", "link"])
def test_a_layer_that_is_not_whole_is_told_before_anything_is_given(
    store: Store, damage: str, tmp_path: Path
) -> None:
    """containerd leaves out what another image had unpacked already."""
    name = store.manifest(DIFF_IDS, LAYERS)
    path = store.path(digest_of(LAYERS[1]))
    path.unlink()
    if damage == "cut":
        path.write_bytes(LAYERS[1][:-1])
    elif damage == "link":
        (tmp_path / "elsewhere").write_bytes(LAYERS[1])
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NodeError, match="is not whole in") as caught:
        given(store, name)
    assert "from=NODE" in caught.value.remedy


def test_a_document_that_is_damaged_is_refused(store: Store) -> None:
    name = store.manifest(DIFF_IDS, LAYERS)
    store.path(name).write_bytes(store.path(name).read_bytes() + b" ")
    with pytest.raises(NodeError, match="is damaged"):
        given(store, name)


def test_an_image_of_other_layers_is_not_given(store: Store) -> None:
    name = store.manifest(DIFF_IDS, LAYERS)
    with pytest.raises(NodeError, match="no image"):
        given(store, name, list(reversed(DIFF_IDS)))


# What the endpoint on loopback says to docker, and to everybody else, over real HTTP.

LAYER = bytes(range(200))
CONFIG = b'{"rootfs": {"type": "layers", "diff_ids": []}}'
MANIFEST = offer.manifest_of(CONFIG, [(digest_of(LAYER), len(LAYER))])
INDEX = json.dumps({"manifests": [{"digest": digest_of(MANIFEST)}]}).encode()
OF = {raw: digest_of(raw) for raw in (LAYER, CONFIG, MANIFEST, INDEX)}
CONTENT = {OF[raw]: offer.document(raw) for raw in (CONFIG, MANIFEST, INDEX)}
CONTENT[OF[LAYER]] = offer.image_blob(len(LAYER), 7)
BASE = f"/v2/{offer.REPOSITORY}"
BLOB, TAKEN = f"{BASE}/blobs/{OF[LAYER]}", f"{BASE}/manifests/{OF[MANIFEST]}"


class Giver:
    """Stand-in for the giving node: one layer, in pieces, and what was asked of it."""

    def __init__(self, fails: bool = False) -> None:
        self.asked, self._fails = list[tuple[int, int, int]](), fails

    def fetch(self, item: int, first: int, end: int, write: offer.Write) -> None:
        """Gives a part; a giver that fails does so in the middle."""
        self.asked.append((item, first, end))
        middle = (first + end) // 2
        write(memoryview(LAYER)[first:middle])
        if self._fails:
            raise NodeError("the link is gone", "no_peer")
        write(memoryview(LAYER)[middle:end])


@contextmanager
def opened(giver: Giver) -> Iterator[offer.Endpoint]:
    """An endpoint at work."""
    with offer.Endpoint(CONTENT, giver.fetch) as made:
        yield made


def password(made: offer.Endpoint) -> str:
    """What docker sends for the X-Registry-Auth that it is given."""
    said = json.loads(base64.urlsafe_b64decode(made.header))
    assert said["serveraddress"] == f"127.0.0.1:{made.port}"
    return "Basic " + base64.b64encode(f"{said['username']}:{said['password']}".encode()).decode()


def ask(
    made: offer.Endpoint,
    path: str,
    method: str = "GET",
    auth: str | None = None,
    bytes_: str = "",
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request, with the right password where no other is given."""
    headers = {"Authorization": password(made) if auth is None else auth}
    headers |= {"Range": f"bytes={bytes_}"} if bytes_ else {}
    line = http.client.HTTPConnection("127.0.0.1", made.port, timeout=5)
    try:
        line.request(method, path, headers=headers)
        answer = line.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        line.close()


@pytest.mark.parametrize(("path", "body", "kind"), [
    ("/v2/", b"{}", "application/json"),
    (TAKEN, MANIFEST, "application/vnd.oci.image.manifest.v1+json"),
    (f"{TAKEN}?ns=example", MANIFEST, "application/vnd.oci.image.manifest.v1+json"),
    (f"{BASE}/manifests/{OF[INDEX]}", INDEX, "application/vnd.oci.image.index.v1+json"),
    (f"{BASE}/blobs/{OF[CONFIG]}", CONFIG, "application/octet-stream"),
    (BLOB, LAYER, "application/octet-stream"),
])  # fmt: skip
def test_what_the_image_has_is_given_by_its_digest(path: str, body: bytes, kind: str) -> None:
    with opened(Giver()) as made:
        status, said, got = ask(made, path)
        assert (status, said["content-type"], got) == (200, kind, body)
        status, said, got = ask(made, path, "HEAD")
        assert (status, said["content-length"], got) == (200, str(len(body)), b"")


def test_a_question_about_a_layer_asks_nothing_of_the_giver() -> None:
    giver = Giver()
    with opened(giver) as made:
        assert ask(made, BLOB, "HEAD")[0] == 200 and not giver.asked and not made.asked
        assert ask(made, BLOB)[0] == 200 and giver.asked == [(7, 0, 200)]
        assert made.asked == {OF[LAYER]}


@pytest.mark.parametrize(("asked", "status", "span"), [
    ("150-", 206, (150, 200)), ("0-", 200, (0, 200)), ("3-5", 206, (3, 6)),
    ("199-", 206, (199, 200)), ("10-9999", 206, (10, 200)),
    ("200-", 416, (0, 0)), ("9-3", 416, (0, 0)), ("99999999999999999999999-", 200, (0, 200)),
    # forms that docker does not use get the whole
    ("-5", 200, (0, 200)), ("0-1,5-6", 200, (0, 200)),
])  # fmt: skip
def test_a_part_is_given_from_where_docker_goes_on(
    asked: str, status: int, span: tuple[int, int]
) -> None:
    with opened(Giver()) as made:
        got, said, body = ask(made, BLOB, bytes_=asked)
        assert got == status
        if status == 416:
            assert said["content-range"] == "bytes */200"
            return
        assert body == LAYER[span[0] : span[1]] and said["content-length"] == str(len(body))
        if status == 206:
            assert said["content-range"] == f"bytes {span[0]}-{span[1] - 1}/200"


@pytest.mark.parametrize("auth", [
    "", "Basic", "Basic cmlnYm9vazo=", "Bearer x", "Basic ünd", "Basic " + "A" * 5000,
])  # fmt: skip
@pytest.mark.parametrize("path", ["/v2/", TAKEN, BLOB, "/etc/passwd"])
def test_who_does_not_know_the_password_gets_nothing(auth: str, path: str) -> None:
    giver = Giver()
    with opened(giver) as made:
        status, said, body = ask(made, path, auth=auth)
        assert status == 401 and said["www-authenticate"].startswith("Basic realm=")
        assert OF[LAYER] not in body.decode() and not giver.asked


def test_each_transfer_has_a_password_of_its_own() -> None:
    with opened(Giver()) as one, opened(Giver()) as other:
        assert ask(one, BLOB, auth=password(other))[0] == 401


@pytest.mark.parametrize("path", [
    "/", "/v2/_catalog", f"{BASE}/tags/list", f"{BASE}/manifests/latest",
    f"{BASE}/manifests/{OF[LAYER]}", f"{BASE}/manifests/{OF[CONFIG]}",
    f"{BASE}/blobs/sha256:{'0' * 64}", f"{BASE}/blobs/{OF[LAYER].upper()}",
    f"{BASE}/blobs/{OF[LAYER]}/..", f"{BASE}/blobs/../blobs/{OF[LAYER]}",
    f"{BASE}/blobs/sha256:../../../../etc/passwd", f"{BASE}/blobs/%2e%2e/{OF[LAYER]}",
    f"/v2/other/blobs/{OF[LAYER]}", f"{BASE}/blobs/uploads/", f"//v2/x/blobs/{OF[LAYER]}",
])  # fmt: skip
def test_what_is_not_of_this_image_is_not_there(path: str) -> None:
    giver = Giver()
    with opened(giver) as made:
        assert ask(made, path)[0] == 404 and not giver.asked


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
def test_nothing_can_be_changed(method: str) -> None:
    with opened(Giver()) as made:
        assert ask(made, BLOB, method)[0] == 501


def test_docker_that_greets_by_tls_is_told_that_this_is_plain_http() -> None:
    """A ClientHello has no end of line: waiting for one would end by the timeout."""
    with opened(Giver()) as made, socket.create_connection(("127.0.0.1", made.port), 5) as line:
        line.sendall(b"\x16\x03\x01\x00\x10" + b"x" * 16)
        assert line.recv(100).startswith(b"HTTP/1.0 400")


def test_a_giver_that_is_gone_cuts_the_answer_and_is_named() -> None:
    """docker has to see that it is not whole; its words alone would not say why."""
    with opened(Giver(fails=True)) as made:
        with pytest.raises(http.client.IncompleteRead):
            ask(made, BLOB)
        assert str(made.error) == "the link is gone"


def test_more_connections_than_docker_makes_are_hung_up_on() -> None:
    with opened(Giver()) as made:
        lines = [socket.create_connection(("127.0.0.1", made.port), 5)
                 for _ in range(offer.MAX_CONNECTIONS)]  # fmt: skip
        try:
            with socket.create_connection(("127.0.0.1", made.port), 5) as more:
                assert more.recv(1) == b""
        finally:
            for line in lines:
                line.close()


def test_it_is_on_loopback_and_gone_afterwards() -> None:
    with opened(Giver()) as made:
        port = made.port
        assert made.name == f"127.0.0.1:{port}/rigbook-pull"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_the_same_image_makes_the_same_manifest() -> None:
    """A second run on a node that has it by then must find it."""
    assert offer.manifest_of(CONFIG, [(OF[LAYER], 200)]) == MANIFEST
    said = json.loads(MANIFEST)
    assert said["config"]["digest"] == OF[CONFIG] and said["layers"][0]["size"] == 200


# What goes into docker through its socket: whose fault is told, and that nobody is waited for.


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A stand-in for docker's socket (labelled): connections come in, and nobody says a word."""
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(api, "SOCKET", str(path))
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen()
        yield made


def nothing(*_: object) -> None:
    """Is told and does nothing."""


@pytest.mark.parametrize(
    ("number", "code", "remedy"), [(errno.ENOSPC, "no_room", "df -h"), (errno.EIO, "io", "dmesg")]
)
def test_a_spool_that_fails_is_not_laid_at_dockers_door(
    docker: socket.socket, number: int, code: str, remedy: str
) -> None:
    """The thread that fetches met it; the upload, which waits for its bytes, tells it."""
    growing = load.GrowingLayers()
    growing.failed(OSError(number, "the disk said so"))
    with pytest.raises(NodeError, match=r"the spool .*the disk said so") as caught:
        load.import_layer(growing.read(0, "/nonexistent", 10), 5, nothing, nothing, nothing)
    assert caught.value.code == code and remedy in caught.value.remedy
    assert "docker" not in str(caught.value)


class Gone(Exception):
    """What the look raises here once nobody waits any more."""


def looking(after: int) -> tuple[list[int], Callable[[], None]]:
    """A look that ends the waiting at its n-th call, and its calls so far."""
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) >= after:
            raise Gone

    return looks, look


@pytest.mark.parametrize("size", [100, 64 << 20])
def test_a_docker_that_hangs_keeps_nobody_whom_nobody_waits_for(
    docker: socket.socket, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the answer is waited for (100 bytes), and while docker takes no more of the upload."""
    monkeypatch.setattr(api, "LOOK_EVERY_S", 0.01)
    looks, look = looking(50)
    with pytest.raises(Gone):
        load.import_layer(iter([bytes(size)]), 60, nothing, nothing, look)
    assert len(looks) == 50


def test_a_docker_that_hangs_has_its_time_and_no_more(
    docker: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "LOOK_EVERY_S", 0.01)
    with pytest.raises(NodeError, match="was not done in"):
        load.import_layer(iter([b"x"]), 0.1, nothing, nothing, nothing)


def test_a_giver_that_sends_nothing_keeps_nobody_whom_nobody_waits_for(tmp_path: Path) -> None:
    _, look = looking(2)
    with pytest.raises(Gone):
        next(load.GrowingLayers(look).read(0, str(tmp_path / "none"), 10))


def test_an_answer_is_read_whole_though_docker_closes_after_it(docker: socket.socket) -> None:
    """docker says why it takes no more, with `Connection: close`, in pieces."""

    def refuse() -> None:
        near, _ = docker.accept()
        near.recv(10)
        said = b'{"message": "no space left on device"}'
        head = f"HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: {len(said)}\r\n\r\n"
        for part in (head.encode()[:30], head.encode()[30:], said[:20], said[20:]):
            near.sendall(part)
            time.sleep(0.02)
        near.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    with pytest.raises(NodeError, match="docker load: no space left on device"):
        load.load(iter([b"x"]), 5, nothing, nothing, nothing)
    thread.join()


# An image's layers on their way to docker: which go together, what is damaged or there already.

MIB = 1 << 20
GIB = 1 << 30


LARGE = receive.GROUP


@pytest.mark.parametrize(("sizes", "from_nothing", "groups"), [
    ({0: 5, 1: 5, 2: 5}, True, [[0], [1, 2]]), ({1: 5, 2: 5}, False, [[1, 2]]), ({}, False, []),
    # large layers are registered while the next travels
    ({1: LARGE, 2: GIB, 3: 10, 4: LARGE, 5: 1}, False, [[1], [2], [3, 4], [5]]),
])  # fmt: skip
def test_the_lowest_layer_of_all_goes_by_itself(
    sizes: dict[int, int], from_nothing: bool, groups: list[list[int]]
) -> None:
    """Only a layer with nothing below it can be imported."""
    assert receive.load_groups(sizes, from_nothing) == groups


@pytest.mark.parametrize(("sizes", "from_nothing", "room"), [
    ({0: 4 * GIB, 1: 3 * GIB, 2: 2 * GIB}, True, 9 * GIB + 3 * GIB), ({0: 4 * GIB}, True, 4 * GIB),
    ({1: GIB}, False, 2 * GIB), ({}, False, 0),
])  # fmt: skip
def test_room_is_for_all_layers_and_one_unpacked_archive(
    sizes: dict[int, int], from_nothing: bool, room: int
) -> None:
    assert receive.room_needed(sizes, from_nothing) == room


def test_what_keeps_layers_has_no_command_and_says_what_it_is() -> None:
    whole = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["x"], "Env": ["A=secret"]},
             "rootfs": {"type": "layers", "diff_ids": ["a", "b"]}, "history": [{}, {}]}  # fmt: skip
    part = json.loads(load.part_config(json.dumps(whole).encode(), ["a"]))
    assert part["rootfs"]["diff_ids"] == ["a"] and part["architecture"] == "amd64"
    assert part["config"] == {"Labels": {load.PART: "1"}}


def test_a_layer_whose_byte_flipped_on_the_wire_comes_right(ends: Ends, tmp_path: Path) -> None:
    """The blocks are checked where they come, though nobody takes a sha256 there."""
    made = files(ends.source, a_bin=12 * MIB)
    spoil = transfers.Once(6 * MIB, transfers.flipped)
    path, grown = tmp_path / "layer", []
    with ends.meddled(spoil), ends.offering():
        peer = client.Peer(ends.place(), ends.key, lambda: None)
        client.fetch_without_digest(peer, 0, str(path), 12 * MIB, grown.append)
        peer.bye(None)
    assert not spoil.left and peer.damaged == 1
    assert path.read_bytes() == made["a.bin"] and sum(grown) == 12 * MIB


def bringing(
    folder: Path, contents: dict[int, bytes], said: dict[int, bytes]
) -> tuple[receive.ImageReceiver, dict[int, Path]]:
    """One whose spool holds `contents`, of layers that should have been `said`."""
    diff_ids = [f"sha256:{hashlib.sha256(said[n]).hexdigest()}" for n in sorted(said)]
    body = {"want": {"id": "", "layers": diff_ids}, "deadline_s": 5}
    made = receive.ImageReceiver(body, client.Peer({}, "", lambda: None))
    made._sizes = {n: len(said[n]) for n in contents}
    made._place(str(folder))
    paths = {n: Path(made._paths[n]) for n in contents}
    for n, raw in contents.items():
        paths[n].write_bytes(raw)
        made._growing.grew(n, len(raw))
    return made, paths


def test_a_layer_that_docker_finds_wrong_is_dropped_and_named(tmp_path: Path) -> None:
    """After a power cut a part may hold zeroes: the next run must not try it again."""
    made, paths = bringing(tmp_path, {0: b"right", 1: b"wrong"}, {0: b"right", 1: b"other"})
    with pytest.raises(NodeError, match="is damaged") as caught:
        made._damaged([0, 1])
    assert caught.value.code == "not_the_same"
    assert paths[0].exists() and not paths[1].exists()
    # one that is not all here is not called damaged
    made, paths = bringing(tmp_path, {0: b"rig"}, {0: b"right"})
    made._damaged([0])
    assert paths[0].exists()


class _Docker:
    """Stand-in for docker's side of a load: fails as told, then has the layers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
        self.words, self.imports, self.have = words, 0, 0
        monkeypatch.setattr(load, "import_layer", self._import)
        monkeypatch.setattr(receive.store, "present", lambda root, ids: self.have)
        monkeypatch.setattr(load, "is_docker_back", lambda look: True)

    def _import(self, chunks: object, *_: object) -> None:
        self.imports += 1
        if self.words:
            raise NodeError(self.words.pop(0), "image_load")
        self.have = 1


def test_a_docker_that_ended_is_tried_again_and_a_full_disk_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, paths = bringing(tmp_path, {0: b"right"}, {0: b"right"})
    docker = _Docker(monkeypatch, ["docker ended while it loaded"])
    made._register(b"{}", [0])
    assert docker.imports == 2 and not paths[0].exists()
    made, paths = bringing(tmp_path, {0: b"right"}, {0: b"right"})
    docker = _Docker(monkeypatch, ["docker load: write: no space left on device"])
    with pytest.raises(NodeError, match="no space left"):
        made._register(b"{}", [0])
    assert docker.imports == 1 and paths[0].exists()


class _Giver:
    """Stand-in for the giving node: layers by number, and how often each was asked for."""

    def __init__(self, contents: list[bytes]) -> None:
        self.contents, self.fetched = contents, list[int]()
        self.diff_ids = [f"sha256:{hashlib.sha256(raw).hexdigest()}" for raw in contents]
        self.config = json.dumps({"rootfs": {"diff_ids": self.diff_ids}}).encode()

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        if "size" in message:
            return {"size": len(self.contents[message["size"]])}
        return {"config": base64.b64encode(self.config).decode()}

    def fetch(self, peer: object, item: int, path: str, size: int, grown: client.Grown) -> None:
        self.fetched.append(item)
        grown(Path(path).write_bytes(self.contents[item]))

    def bye(self, error: str | None = None) -> None:
        """Nobody is there to hear it."""

    stop_if_gone = bye


class _Store:
    """Stand-in for docker's store: takes archives, and looks at each layer as docker does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, giver: _Giver) -> None:
        self.giver, self.have, self.archives = giver, 0, list[list[str]]()
        monkeypatch.setattr(receive.store, "present", lambda root, ids: self.have)
        monkeypatch.setattr(load, "import_layer", self._import)
        monkeypatch.setattr(load, "load", self._load)
        monkeypatch.setattr(load, "is_complete", lambda want: self.have == len(giver.contents))

    def _import(self, chunks: Iterator[bytes], *_: object) -> None:
        assert b"".join(chunks) == self.giver.contents[0]
        self.have = 1

    def _load(self, chunks: Iterator[bytes], *_: object) -> None:
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
            members = tar.getmembers()
            sent = {info.name: (tar.extractfile(info) or io.BytesIO()).read() for info in members}
        self.archives.append([i.name for i in members if i.name.endswith("layer.tar")])
        names = json.loads(sent["manifest.json"])[0]["Layers"]
        for name, raw in list(zip(names, self.giver.contents, strict=False))[self.have :]:
            assert sent[name] == raw
        self.have = len(names)


def test_a_layer_that_an_image_has_twice_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of NGC and CUDA repeat the empty layer, in one group and in later ones."""
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(receive, "GROUP", 2048)
    empty = bytes(1024)
    giver = _Giver([b"lowest", empty, empty, b"middle", empty, b"lowest"])
    monkeypatch.setattr(client, "fetch_without_digest", giver.fetch)
    store = _Store(monkeypatch, giver)
    want = {"id": f"sha256:{hashlib.sha256(giver.config).hexdigest()}", "layers": giver.diff_ids}
    job = receive.ImageReceiver({"want": want, "deadline_s": 5}, giver)
    job.bring(str(tmp_path), giver.ask({"list": True}))
    assert giver.fetched == [0, 1, 3] and store.have == 6
    assert [len(names) for names in store.archives] == [1, 3], "each layer once in an archive"
    assert job.figures["bytes"] == len(b"lowest") + 1024 + len(b"middle")
    assert list(Path(spool.folder()).glob(f"*{receive.SUFFIX}")) == []


WANT = {"id": "sha256:" + "1" * 64, "layers": ["sha256:" + "2" * 64]}


def image_request(ends: Ends) -> dict[str, Any]:
    """The request of an image's taker."""
    return {"change": change(), "from": ends.place(), "key": ends.key,
            "image": "rigbook/small:1", "want": WANT}  # fmt: skip


class AnOperator:
    """A stand-in for the session that started it: it stays."""

    def gone(self) -> None:
        """Nobody is gone."""


def test_a_giver_that_listens_later_still_hears_that_nothing_is_needed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin at the same time; a giver that heard no word waits 90 s and fails the run."""
    files(ends.source, a_bin=1)
    begun: list[subprocess.Popen[str]] = []
    real = protocol.connect
    with contextlib.ExitStack() as until:

        def call(*args: Any) -> protocol.Connection:
            if not begun:
                begun.append(until.enter_context(ends.offering(deadline_s=20)))
                transfers.wait_for(lambda: transfers.listening(ends.port), 60)
                raise protocol.WireError("no way to the giver: it does not listen yet")
            return real(*args)

        monkeypatch.setattr(protocol, "connect", call)
        monkeypatch.setenv("RIGBOOK_STATE", str(ends.taker.state))
        monkeypatch.setattr(protocol, "ParentWatch", AnOperator)
        # stand-ins for docker: the image is there, and the tag is set
        monkeypatch.setattr(offer, "find_store", lambda: offer.Store("/nosuch", False))
        monkeypatch.setattr(load, "is_complete", lambda want: True)
        monkeypatch.setattr(load, "remove_partial_images", lambda: None)
        monkeypatch.setattr(load, "remove_pulled_names", lambda: None)
        monkeypatch.setattr(receive, "_tag", lambda body, name, image_id: True)
        got = receive.receive(image_request(ends))
        assert got["changed"]
        gave = answer(begun[0], 60)
        assert gave["ok"] and gave["peers"][HERE]["error"] is None, gave


def test_two_images_at_once_the_second_is_refused_and_its_giver_is_told(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The giver listens a moment later than the refusal; unheard, it would wait for 90 s."""
    files(ends.source, a_bin=10)
    monkeypatch.setenv("RIGBOOK_STATE", ends.taker.environ()["RIGBOOK_STATE"])
    with spool.TransferLock("image"):
        taker = ends.start(ends.taker, "image receive", image_request(ends))
        with ends.offering() as giver:
            got, gave = answer(taker), answer(giver)
    assert not got["ok"] and got["code"] == "transfer_runs", got
    assert gave["peers"][HERE]["done"], gave
    assert "another transfer of image runs" in gave["peers"][HERE]["error"]


@pytest.mark.parametrize("busy", [False, True])
def test_an_image_that_came_by_another_way_clears_what_a_transfer_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Gigabytes would stay for good; what a transfer is still bringing is left alone."""
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    parts: list[str] = []
    monkeypatch.setattr(load, "remove_partial_images", lambda: parts.append("dropped"))
    monkeypatch.setattr(load, "remove_pulled_names", lambda: parts.append("untagged"))
    monkeypatch.setattr(receive, "_tag", lambda body, name, image_id: True)
    left = Path(spool.ensure()) / f"{'2' * 64}{receive.SUFFIX}"
    left.write_bytes(b"half a layer")
    request = {"change": change(), "image": "rigbook/small:1", "want": WANT}
    with spool.TransferLock("image") if busy else contextlib.nullcontext():
        assert receive.tag(request) == {"changed": True}
    assert (left.exists(), parts) == ((True, []) if busy else (False, ["dropped", "untagged"]))
