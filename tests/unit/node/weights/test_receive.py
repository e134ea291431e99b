"""A weights folder belongs to the login user: what he puts there must not lead root elsewhere, and
what is known of its files holds only for the files that were read."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.transfer import client, protocol, spool
from node.weights import manifest, receive
from tests.unit.node.support import transfers as t
from tests.unit.node.support.host import Host
from tests.unit.node.support.transfers import HERE, Ends, answer, content, files

MIB = 1 << 20


def hashed(host: Host, path: Path, **more: object) -> dict[str, Any]:
    """The answer of `weights hash`."""
    return host.call("weights hash", {"path": str(path), **more})


def test_a_link_in_place_of_a_folder_is_not_written_through(ends: Ends, tmp_path: Path) -> None:
    (ends.source / "sub").mkdir(parents=True)
    (ends.source / "sub" / "profile").write_bytes(b"the giver's")
    elsewhere = tmp_path / "etc"
    elsewhere.mkdir()
    (elsewhere / "profile").write_text("root's own")
    ends.target.mkdir()
    (ends.target / "sub").symlink_to(elsewhere)
    got, _ = ends.move()
    assert (got["ok"], got["code"]) == (False, "not_a_folder") and "sub is a link" in got["error"]
    assert (elsewhere / "profile").read_text() == "root's own"


def test_links_laid_in_our_own_folder_meanwhile_are_not_followed(
    ends: Ends, tmp_path: Path
) -> None:
    made = files(ends.source, a_bin=12 * MIB)
    secret = tmp_path / "shadow"
    secret.write_text("secret")
    secret.chmod(0o600)
    own = ends.target / ".rigbook"

    def spoil(connection: int, offset: int, data: bytes) -> bytes:
        if offset > 6 * MIB and not (ends.target / "moved-away").exists():
            (name,) = (p.name for p in own.glob("*.part"))
            own.rename(ends.target / "moved-away")
            own.mkdir()
            (own / name).symlink_to(secret)
        return data

    with ends.meddled(spoil):
        got, _ = ends.move()
    assert (ends.target / "moved-away").is_dir() and got["code"] == "part_gone", got
    assert secret.stat().st_mode & 0o777 == 0o600 and secret.read_text() == "secret"
    (link,) = ends.parts()
    link.unlink()
    assert ends.move()[0]["ok"] and not (ends.target / "a.bin").is_symlink()
    assert (ends.target / "a.bin").read_bytes() == made["a.bin"]
    assert secret.stat().st_mode & 0o777 == 0o600 and secret.read_text() == "secret"


def test_a_file_that_leads_out_by_the_time_it_is_read_is_not_given(tmp_path: Path) -> None:
    files(tmp_path / "w", a_bin=10)
    folder = manifest.Folder(str(tmp_path / "w"))
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "w" / "a.bin").unlink()
    (tmp_path / "w" / "a.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(NodeError, match=r"no file of this folder"), folder.opened("a.bin"):
        pass
    assert folder.names() == [] and folder.outside() == ["a.bin"]


def test_a_hash_holds_only_for_the_file_that_was_read(tmp_path: Path) -> None:
    """A file that is written again between its hashing and the manifest is not known."""
    files(tmp_path, a_bin=10, b_bin=10)
    folder = manifest.Folder(str(tmp_path))
    hashes = {}
    for name in folder.names():
        with folder.opened(name) as file:
            hashes[name] = manifest.hash_of(file, name)
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    folder.save(hashes)
    assert [row["sha256"] for row in folder.list()] == [None, hashes["b.bin"].sha256]


def test_a_file_that_is_written_to_while_it_is_hashed_has_no_hash(tmp_path: Path) -> None:
    files(tmp_path, a_bin=9 * MIB)
    with manifest.Folder(str(tmp_path)).opened("a.bin") as file:

        def write(count: int) -> None:
            (tmp_path / "a.bin").write_bytes(bytes(MIB))

        with pytest.raises(NodeError, match=r"written to while"):
            manifest.hash_of(file, "a.bin", write)


@pytest.mark.parametrize("how", ["another file is renamed in", "its bytes are written anew"])
def test_size_and_mtime_do_not_make_a_hash_hold(ends: Ends, how: str) -> None:
    path, other = ends.source / "a.bin", ends.source / "other"
    former = hashlib.sha256(files(ends.source, a_bin=MIB)["a.bin"]).hexdigest()
    asked: list[dict[str, Any]] = [hashed(ends.giver, ends.source) for _ in range(2)]
    assert [row["hashed"] for row in asked] == [1, 0]
    was = path.stat()
    if how.startswith("another"):
        other.write_bytes(bytes(MIB))
        other.rename(path)
    else:
        path.write_bytes(bytes(MIB))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    (row,) = hashed(ends.giver, ends.source)["files"]
    assert row["sha256"] == hashlib.sha256(bytes(MIB)).hexdigest() != former


def test_a_manifest_of_a_former_version_is_not_believed(ends: Ends) -> None:
    """It has neither inode nor ctime: what it says of a file is read anew, once."""
    files(ends.source, a_bin=1000)
    assert hashed(ends.giver, ends.source)["hashed"] == 1
    path = ends.source / ".rigbook" / "manifest.json"
    said = json.loads(path.read_text())
    for row in said["files"]:
        row.update(sha256="0" * 64)
        for key in ("ino", "ctime_ns"):
            row.pop(key, None)
    path.write_text(json.dumps(said))
    assert [hashed(ends.giver, ends.source)["hashed"] for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("knows", [(), ("giver",), ("taker",), ("giver", "taker")])
@pytest.mark.parametrize("is_same", [True, False])
def test_files_of_the_same_ends_are_compared_whole(
    ends: Ends, knows: tuple[str, ...], is_same: bool
) -> None:
    made = files(ends.source, a_bin=MIB)["a.bin"]
    middle = MIB // 2
    there = made if is_same else made[:middle] + bytes([made[middle] ^ 1]) + made[middle + 1 :]
    ends.target.mkdir()
    (ends.target / "a.bin").write_bytes(there)
    for end in knows:
        host, folder = {"giver": (ends.giver, ends.source),
                        "taker": (ends.taker, ends.target)}[end]  # fmt: skip
        assert hashed(host, folder)["hashed"] == 1
    got, gave = ends.move()
    assert got["ok"] and gave["ok"], (got, gave)
    assert (got["changed"], got["files"]) == ((False, []) if is_same else (True, ["a.bin"]))
    assert (ends.target / "a.bin").read_bytes() == made
    # what was read for it is known from now on, also of a file that has just got its name
    both = [hashed(ends.giver, ends.source), hashed(ends.taker, ends.target)]
    assert [row["hashed"] for row in both] == [0, 0]


def test_a_flush_error_that_the_kernel_tells_once_keeps_the_file_from_being_whole(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux tells a writeback error to one fsync, here one in the middle: the next finds none."""
    made = files(ends.source, a_bin=12 * MIB)
    failed: list[str] = []
    fsync = os.fsync

    def once(fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        if name.endswith(".part") and not failed:
            failed.append(threading.current_thread().name)
            raise OSError(28, "No space left on device")
        fsync(fd)

    monkeypatch.setenv("RIGBOOK_STATE", str(ends.taker.state))
    monkeypatch.setattr(receive, "FLUSH", MIB)
    monkeypatch.setattr(os, "fsync", once)
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        with ends.offering(), pytest.raises(NodeError, match=r"a\.bin: .*No space left") as caught:
            receive.receive(ends.receive())
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
    assert "ThreadPool" in failed[0], "the flush in the middle was not hit"
    assert "fetched anew" in str(caught.value.remedy)
    assert content(ends.target) == {} and ends.parts() == []
    got, _ = ends.move()
    assert got["ok"] and got["resumed_bytes"] == 0 and content(ends.target) == made


def test_models_of_one_file_each_in_one_folder_do_not_forget_each_other(ends: Ends) -> None:
    made = files(ends.source, one_gguf=1000, two_gguf=2000)
    for name in ("one.gguf", "two.gguf"):
        assert hashed(ends.giver, ends.source / name)["hashed"] == 1
    for name in ("one.gguf", "two.gguf"):
        assert hashed(ends.giver, ends.source / name)["hashed"] == 0
    (ends.target / ".rigbook").mkdir(parents=True)
    others = ends.target / ".rigbook" / ("0" * 16 + "-" + "1" * 16 + ".part")
    others.write_bytes(b"half of another model")
    with ends.offering(path=str(ends.source / "one.gguf")):
        asked = ends.receive(path=str(ends.target / "one.gguf"))
        assert ends.taker.call("weights receive", asked)["ok"]
    assert content(ends.target) == {"one.gguf": made["one.gguf"]} and others.exists()


def test_prune_spares_what_the_giver_has_as_a_link_out(ends: Ends, tmp_path: Path) -> None:
    """A Hugging Face cache links files into its folder: they are not moved, and not missing."""
    files(ends.source, a_bin=10)
    (tmp_path / "blob").write_text("{}")
    (ends.source / "tokenizer.json").symlink_to(tmp_path / "blob")
    files(ends.target, tokenizer_json=2, old_bin=3)
    got, _ = ends.move(prune=True)
    assert got["ok"] and got["pruned"] == ["old.bin"]
    assert sorted(content(ends.target)) == ["a.bin", "tokenizer.json"]


def test_a_folder_of_links_says_what_it_is(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("{}")
    ends.source.mkdir()
    (ends.source / "config.json").symlink_to(tmp_path / "blob")
    said = ends.giver.call("weights offer", ends.offer())
    assert not said["ok"] and "1 links lead out of it" in said["error"]
    assert "cp -rL" in said["remedy"]


def test_our_own_folder_in_another_users_hands(ends: Ends) -> None:
    """rsync or cp of a weights folder brings `.rigbook` along, as the user's."""
    made = files(ends.source, a_bin=1000)
    for folder in (ends.source, ends.target):
        (folder / ".rigbook").mkdir(parents=True)
        os.chown(folder / ".rigbook", 65534, 65534)
    got, _ = ends.move()
    assert got["code"] == "unsafe_folder"
    assert got["remedy"].endswith(f"sudo rm -r {ends.target}/.rigbook")
    # nothing was begun, so nothing is open
    assert not list((ends.taker.state / "changes").glob("*"))
    os.chown(ends.target / ".rigbook", 0, 0)
    got, gave = ends.move()
    assert got["ok"] and gave["ok"] and content(ends.target) == made
    assert "not a folder of root alone" in gave["not_kept"]


def test_what_cannot_be_is_said_in_one_line(ends: Ends) -> None:
    (ends.source / "sub").mkdir(parents=True)
    (ends.source / "sub" / "a").write_bytes(b"1")
    files(ends.target, sub=1)
    got, _ = ends.move()
    assert got["code"] == "not_a_folder" and "sub is no folder" in got["error"]
    got = ends.taker.call("weights receive", ends.receive(owner="nobody-of-that-name"))
    assert got["code"] == "no_user" and "nobody-of-that-name" in got["error"]


def test_a_taker_that_is_refused_does_not_leave_the_giver_waiting(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(ends.source, a_bin=10)
    monkeypatch.setenv("RIGBOOK_STATE", str(ends.taker.state))
    with ends.offering() as offer:
        with spool.TransferLock("weights"):
            got = ends.taker.call("weights receive", ends.receive())
        assert got["code"] == "transfer_runs"
        gave = answer(offer)
    assert gave["ok"] and "another transfer" in gave["peers"][HERE]["error"]


def test_a_giver_that_always_breaks_off_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 1.0)
    came: list[float] = []
    with (
        t.giver(lambda line: came.append(time.monotonic())) as (place, key),
        pytest.raises(NodeError) as caught,
    ):
        client.Peer(place, key, lambda: None).ask({"list": True})
    assert caught.value.code == "no_peer" and 1 < len(came) < 30


def test_what_a_giver_cannot_read_is_said_and_not_asked_for_again(ends: Ends) -> None:
    files(ends.source, a_bin=10)
    with ends.offering():
        peer = client.Peer(ends.place(), ends.key, lambda: None)
        with pytest.raises(NodeError) as caught:
            peer.ask({"size": 7})
        assert caught.value.code == "source"
        peer.bye(None)


def test_a_line_that_is_lost_during_the_handshake_is_called_again(ends: Ends) -> None:
    made = files(ends.source, a_bin=MIB)
    with ends.meddled(
        lambda number, offset, data: None if number == 1 and offset else data
    ) as meddler:
        got, _ = ends.move()
    assert got["ok"] and meddler.connections > 1 and content(ends.target) == made


def test_a_giver_hears_of_a_taker_that_reads_what_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A part of 40 GB takes minutes to read: the giver would think that nobody is there."""
    monkeypatch.setattr(client, "_HERE_EVERY_S", 0.0)
    (tmp_path / "part").write_bytes(bytes(9 * MIB))
    heard: list[Any] = []

    def play(line: protocol.Connection) -> None:
        while True:
            heard.append(line.receive_message())
            if "get" in heard[-1]:
                line.send_message({"end": True, "sha256": "0" * 64})
                return

    with t.giver(play) as (place, key):
        peer = client.Peer(place, key, lambda: None)
        with pytest.raises(NodeError, match=r"what came is"):
            client.fetch(peer, 0, str(tmp_path / "part"), 9 * MIB, None, lambda count: None, None)
    assert [*heard[0]] == ["wait"] and [json.dumps(h)[:6] for h in heard].count('{"wait') == 3
    assert heard[-1]["offset"] == 9 * MIB
