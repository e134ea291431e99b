"""An image's layers on their way to docker: which go together, what is damaged or there already."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.image import load, stores, verbs
from node.image import receive as image_receive
from node.transfer import client, protocol, server, spool
from tests.unit.node.support import transfers as t
from tests.unit.node.support.host import change
from tests.unit.node.support.transfers import HERE, Ends, answer, files

MIB = 1 << 20
GIB = 1 << 30


LARGE = image_receive.GROUP


@pytest.mark.parametrize(("sizes", "from_nothing", "groups"), [
    ({0: 5, 1: 5, 2: 5}, True, [[0], [1, 2]]), ({1: 5, 2: 5}, False, [[1, 2]]), ({}, False, []),
    # large layers are registered while the next travels
    ({1: LARGE, 2: GIB, 3: 10, 4: LARGE, 5: 1}, False, [[1], [2], [3, 4], [5]]),
])  # fmt: skip
def test_the_lowest_layer_of_all_goes_by_itself(
    sizes: dict[int, int], from_nothing: bool, groups: list[list[int]]
) -> None:
    """Only a layer with nothing below it can be imported."""
    assert image_receive.load_groups(sizes, from_nothing) == groups


@pytest.mark.parametrize(("sizes", "from_nothing", "room"), [
    ({0: 4 * GIB, 1: 3 * GIB, 2: 2 * GIB}, True, 9 * GIB + 3 * GIB), ({0: 4 * GIB}, True, 4 * GIB),
    ({1: GIB}, False, 2 * GIB), ({}, False, 0),
])  # fmt: skip
def test_room_is_for_all_layers_and_one_unpacked_archive(
    sizes: dict[int, int], from_nothing: bool, room: int
) -> None:
    assert image_receive.room_needed(sizes, from_nothing) == room


def test_what_keeps_layers_has_no_command_and_says_what_it_is() -> None:
    whole = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["x"], "Env": ["A=secret"]},
             "rootfs": {"type": "layers", "diff_ids": ["a", "b"]}, "history": [{}, {}]}  # fmt: skip
    part = json.loads(load.part_config(json.dumps(whole).encode(), ["a"]))
    assert part["rootfs"]["diff_ids"] == ["a"] and part["architecture"] == "amd64"
    assert part["config"] == {"Labels": {load.PART: "1"}}


def test_a_layer_whose_byte_flipped_on_the_wire_comes_right(ends: Ends, tmp_path: Path) -> None:
    """The blocks are checked where they come, though nobody takes a sha256 there."""
    made = files(ends.source, a_bin=12 * MIB)
    spoil = t.Once(6 * MIB, t.flipped)
    path, grown = tmp_path / "layer", []
    with ends.meddled(spoil), ends.offering():
        peer = client.Peer(ends.place(), ends.key, lambda: None)
        client.fetch_without_digest(peer, 0, str(path), 12 * MIB, grown.append)
        peer.bye(None)
    assert not spoil.left and peer.damaged == 1
    assert path.read_bytes() == made["a.bin"] and sum(grown) == 12 * MIB


def bringing(
    folder: Path, contents: dict[int, bytes], said: dict[int, bytes]
) -> tuple[image_receive.ImageReceiver, dict[int, Path]]:
    """One whose spool holds `contents`, of layers that should have been `said`."""
    diff_ids = [f"sha256:{hashlib.sha256(said[n]).hexdigest()}" for n in sorted(said)]
    body = {"want": {"id": "", "layers": diff_ids}, "deadline_s": 5}
    made = image_receive.ImageReceiver(body, client.Peer({}, "", lambda: None))
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
        monkeypatch.setattr(image_receive.overlay2, "present", lambda root, ids: self.have)
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
        monkeypatch.setattr(image_receive.overlay2, "present", lambda root, ids: self.have)
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
    monkeypatch.setattr(image_receive, "GROUP", 2048)
    empty = bytes(1024)
    giver = _Giver([b"lowest", empty, empty, b"middle", empty, b"lowest"])
    monkeypatch.setattr(client, "fetch_without_digest", giver.fetch)
    store = _Store(monkeypatch, giver)
    want = {"id": f"sha256:{hashlib.sha256(giver.config).hexdigest()}", "layers": giver.diff_ids}
    job = image_receive.ImageReceiver({"want": want, "deadline_s": 5}, giver)
    job.bring(str(tmp_path), giver.ask({"list": True}))
    assert giver.fetched == [0, 1, 3] and store.have == 6
    assert [len(names) for names in store.archives] == [1, 3], "each layer once in an archive"
    assert job.figures["bytes"] == len(b"lowest") + 1024 + len(b"middle")
    assert list(Path(spool.folder()).glob(f"*{image_receive.SUFFIX}")) == []


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
                t.wait_for(lambda: t.listening(ends.port), 60)
                raise protocol.WireError("no way to the giver: it does not listen yet")
            return real(*args)

        monkeypatch.setattr(protocol, "connect", call)
        monkeypatch.setenv("RIGBOOK_STATE", str(ends.taker.state))
        monkeypatch.setattr(server, "ParentWatch", AnOperator)
        # stand-ins for docker: the image is there, and the tag is set
        monkeypatch.setattr(stores, "find", lambda: stores.Store("/nosuch", False))
        monkeypatch.setattr(load, "is_complete", lambda want: True)
        monkeypatch.setattr(load, "remove_partial_images", lambda: None)
        monkeypatch.setattr(load, "remove_pulled_names", lambda: None)
        monkeypatch.setattr(verbs, "_tag", lambda body, name, image_id: True)
        got = verbs.receive(image_request(ends))
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
    monkeypatch.setattr(verbs, "_tag", lambda body, name, image_id: True)
    left = Path(spool.ensure()) / f"{'2' * 64}{image_receive.SUFFIX}"
    left.write_bytes(b"half a layer")
    request = {"change": change(), "image": "rigbook/small:1", "want": WANT}
    with spool.TransferLock("image") if busy else contextlib.nullcontext():
        assert verbs.tag(request) == {"changed": True}
    assert (left.exists(), parts) == ((True, []) if busy else (False, ["dropped", "untagged"]))
