"""A weights folder belongs to the login user: what he puts there must not lead root elsewhere, and
what is known of its files holds only for the files that were read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.change import journal, transaction
from node.core.errors import NodeError
from node.transfer import client, manifest, protocol, spool, weights, weights_set
from tests.unit.node.support import transfers
from tests.unit.node.support.host import Host, change
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
    monkeypatch.setattr(weights, "FLUSH", MIB)
    monkeypatch.setattr(os, "fsync", once)
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        with ends.offering(), pytest.raises(NodeError, match=r"a\.bin: .*No space left") as caught:
            weights.receive(ends.receive())
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
        transfers.giver(lambda line: came.append(time.monotonic())) as (place, key),
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

    with transfers.giver(play) as (place, key):
        peer = client.Peer(place, key, lambda: None)
        with pytest.raises(NodeError, match=r"what came is"):
            client.fetch(peer, 0, str(tmp_path / "part"), 9 * MIB, None, lambda count: None, None)
    assert [*heard[0]] == ["wait"] and [json.dumps(h)[:6] for h in heard].count('{"wait') == 3
    assert heard[-1]["offset"] == 9 * MIB


# A set of weights is switched as one, and what it replaces comes back: also after a kill.

SECOND = {"id": "change-2", "deploy": "weights", "operator": "t"}


def two_sets(ends: Ends) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The giver's set and the good one of the taker, of the same names."""
    new = files(ends.source, config_json=40, one_safetensors=MIB, two_safetensors=2 * MIB)
    (ends.source / "sub").mkdir()
    (ends.source / "sub" / "x.txt").write_bytes(b"giver's")
    files(ends.target, old_bin=9)
    good = {name: bytes(reversed(raw)) for name, raw in new.items()}
    for name, raw in good.items():
        (ends.target / name).write_bytes(raw)
    os.chown(ends.target / "config.json", 12, 34)
    (ends.target / "config.json").chmod(0o600)
    return {**new, "sub/x.txt": b"giver's"}, content(ends.target)


def read(path: Path) -> bytes:
    """What it holds; nothing where it got another name meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def marks(ends: Ends) -> list[str]:
    """What says that the set is none, and what is kept of a former one."""
    own = ends.target / ".rigbook"
    return sorted(p.name for p in own.glob("*") if p.name.startswith(("incomplete", "displaced")))


def test_undo_brings_back_what_was_replaced_and_pruned(ends: Ends) -> None:
    """weights from=NODE of the wrong node replaced the good ones, and undo said ROLLED_BACK."""
    new, good = two_sets(ends)
    before = {name: (ends.target / name).stat() for name in good}
    got, _ = ends.move(prune=True)
    assert got["ok"] and content(ends.target) == new
    assert {row["name"]: row["size"] for row in got["replaced"]} == {
        name: len(raw) for name, raw in good.items()
    }
    assert marks(ends) == ["displaced-change-1"]
    assert got["displaced"] == str(ends.target / ".rigbook" / "displaced-change-1")
    undone = ends.taker.call("undo", {})
    assert undone["status"] == "ROLLED_BACK" and content(ends.target) == good
    for name, was in before.items():
        now = (ends.target / name).stat()
        assert (now.st_ino, now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns) == (
            was.st_ino, was.st_mode, was.st_uid, was.st_gid, was.st_mtime_ns)  # fmt: skip
    assert marks(ends) == [] and not (ends.target / "sub").exists()


def test_a_link_that_was_replaced_is_a_link_again(ends: Ends) -> None:
    files(ends.source, a_bin=10, b_bin=20)
    files(ends.target, real_bin=7)
    (ends.target / "a.bin").symlink_to("real.bin")
    assert ends.move()[0]["ok"] and not (ends.target / "a.bin").is_symlink()
    assert ends.taker.call("undo", {})["status"] == "ROLLED_BACK"
    assert str((ends.target / "a.bin").readlink()) == "real.bin" and marks(ends) == []


def test_a_giver_that_fails_between_two_files_leaves_the_former_set(ends: Ends) -> None:
    """Fault 61: shard 1 of one revision lay beside shard 2 of the other, both under their names."""
    new, good = two_sets(ends)
    with ends.meddled(transfers.slow), ends.offering() as offer:
        taker = ends.start(ends.taker, "weights receive", ends.receive(streams=1))
        whole = ends.target / ".rigbook"
        transfers.kill_when(offer, lambda: any(new["two.safetensors"] == read(p)
                                       for p in whole.glob("*") if p.is_file()),
                    signal.SIGKILL)  # fmt: skip
        taker.send_signal(signal.SIGTERM)
        assert transfers.answer(taker)["code"] == "interrupted"
    assert content(ends.target) == good and marks(ends) == []
    got, _ = ends.move()
    assert got["resumed_bytes"] >= 2 * MIB and got["wire_bytes"] < 2 * MIB
    assert content(ends.target) == {**new, "old.bin": good["old.bin"]}


def test_a_part_of_a_cut_off_run_is_no_change_to_undo(ends: Ends) -> None:
    files(ends.source, a_bin=20 * MIB)
    good = files(ends.target, a_bin=5, b_bin=6)
    ends.killed_taker(4 * MIB)
    undone = ends.taker.call("undo", {})
    assert undone["status"] == "ROLLED_BACK" and content(ends.target) == good
    (step,) = undone["steps"]
    assert "no file was replaced" in step["detail"]


def test_a_later_edit_is_kept_unless_it_is_named(ends: Ends) -> None:
    _, good = two_sets(ends)
    assert ends.move()[0]["ok"]
    (ends.target / "config.json").write_bytes(b"edited")
    said = ends.taker.call("undo", {})
    assert (said["code"], (ends.target / "config.json").read_bytes()) == ("later_edit", b"edited")
    assert str(ends.target) in said["error"]
    done = ends.taker.call("undo", {"overwrite": [str(ends.target)]})
    assert done["status"] == "ROLLED_BACK" and content(ends.target) == good


def test_former_files_that_were_removed_refuse_the_undo_before_anything_is_touched(
    ends: Ends,
) -> None:
    new, good = two_sets(ends)
    assert ends.move()[0]["ok"]
    kept = ends.target / ".rigbook" / "displaced-change-1"
    (kept / "one.safetensors").unlink()
    said = ends.taker.call("undo", {})
    assert said["code"] == "displaced_gone" and str(kept / "one.safetensors") in said["error"]
    assert content(ends.target) == {**new, "old.bin": good["old.bin"]}


def test_one_former_set_at_most_is_kept(ends: Ends) -> None:
    """Until the next run that brings something, once its change is settled."""
    new, _ = two_sets(ends)
    first = ends.move(prune=True)[0]
    assert first["freed"] == []
    again = ends.move(change=change())[0]
    assert not again["changed"] and marks(ends) == ["displaced-change-1"]
    assert ends.taker.call("close", {"change": "change-1", "status": "COMMITTED"})["ok"]
    (ends.source / "config.json").write_bytes(b"a third")
    got, _ = ends.move(change=SECOND)
    (freed,) = got["freed"]
    assert (freed["change"], freed["files"]) == ("change-1", 4)
    assert freed["bytes"] == 3 * MIB + 40 + 9
    assert marks(ends) == ["displaced-change-2"]
    assert ends.taker.call("undo", {"change": "change-2"})["status"] == "ROLLED_BACK"
    assert content(ends.target) == new and marks(ends) == []
    assert ends.taker.call("undo", {"change": "change-1"})["code"] == "displaced_gone"


def test_a_blessed_change_can_be_undone_as_long_as_its_files_are_kept(ends: Ends) -> None:
    _, good = two_sets(ends)
    assert ends.move()[0]["ok"]
    assert ends.taker.call("close", {"change": "change-1", "status": "COMMITTED"})["ok"]
    assert ends.taker.call("undo", {"change": "change-1"})["status"] == "ROLLED_BACK"
    assert content(ends.target) == good


def test_two_sets_of_one_change_are_undone_to_the_first(ends: Ends) -> None:
    _, good = two_sets(ends)
    assert ends.move()[0]["ok"]
    (ends.source / "config.json").write_bytes(b"a third")
    (ends.source / "one.safetensors").write_bytes(b"a fourth")
    assert ends.move()[0]["replaced"]
    assert marks(ends) == ["displaced-change-1", "displaced-change-1+1"]
    assert ends.taker.call("undo", {})["status"] == "ROLLED_BACK"
    assert content(ends.target) == good and marks(ends) == []


# The switch of a set and its undo, killed before every call that changes something: what lies
# there is the former set, the new one, or a mix that is marked as one; the next run or an undo
# ends
# it.

CALLS = ("link", "rename", "unlink", "mkdir", "rmdir", "fsync", "fchown", "fchmod")
KILLED = 77
NEW = {"a.bin": b"new a", "b.bin": b"new b", "sub/c.bin": b"new c"}
GOOD = {"a.bin": b"good a", "b.bin": b"good b", "old.bin": b"good old"}


@pytest.fixture
def folder(host: Host, tmp_path: Path) -> Path:
    """A taker's weights, and beside them a set that has come whole."""
    return tmp_path / "weights"


def reset(host: Host, folder: Path) -> None:
    for path in (folder, host.state):
        shutil.rmtree(path, ignore_errors=True)
    folder.mkdir()
    for name, raw in GOOD.items():
        (folder / name).write_bytes(raw)
    with manifest.Folder(str(folder)).own():
        pass
    for name, raw in NEW.items():
        (folder / ".rigbook" / part(name)).write_bytes(raw)


def part(name: str) -> str:
    return name.replace("/", "-") + ".whole"


def switch(folder: Path) -> None:
    wanted: list[dict[str, Any]] = [{"name": name, "part": part(name)} for name in NEW]
    with transaction.opened(journal.parse_change(change()), "test") as log:
        entry = log.begin(
            weights_set.SET_OP,
            stage=weights_set.FETCH,
            change="change-1",
            path=str(folder),
            owner=[0, 0],
            count=3,
            bytes=15,
        )
        weights_set.switch_set(log, entry, wanted, ["old.bin"])


def recover() -> None:
    with transaction.opened(journal.parse_change(change()), "test"):
        pass


def killed_before(number: int, work: Callable[[], object]) -> bool:
    """Runs the work in a child that is killed before its changing call of that number; False when
    it has fewer."""
    pid = os.fork()
    if not pid:
        left = [number]

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(KILLED)
                return real(*args, **more)

            return call

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, KILLED), "the work failed, its traceback is in stderr"
    return ended == KILLED


def require_told(folder: Path) -> None:
    """A mix is never there without its mark, which keeps an engine from its start."""
    found = content(folder)
    if found not in (GOOD, NEW):
        assert manifest.incomplete(str(folder)) == "change-1", found


def each_kill(
    host: Host,
    folder: Path,
    work: Callable[[], object],
    finish: Callable[[Path], None],
    before: Callable[[], object] = lambda: None,
) -> int:
    """Kills `work` before each of its calls in turn and finishes it; gives how many those were."""
    for number in range(1000):
        reset(host, folder)
        before()
        if not killed_before(number, work):
            return number
        require_told(folder)
        finish(folder)
    raise AssertionError("it does not end")


def undone(folder: Path) -> None:
    if journal.find("change-1") is not None:
        assert transaction.undo({})["status"] in ("ROLLED_BACK", None)
    assert content(folder) == GOOD and manifest.incomplete(str(folder)) is None
    assert manifest.displaced_sets(str(folder)) == []


def gone_on_with(folder: Path) -> None:
    recover()
    steps = (journal.find("change-1") or {"steps": []})["steps"]
    if steps and steps[0]["state"] == "done":
        assert content(folder) == NEW and manifest.incomplete(str(folder)) is None
        undone(folder)
    else:
        assert content(folder) == GOOD


@pytest.mark.parametrize("finish", [undone, gone_on_with])
def test_a_switch_that_is_killed_anywhere_is_finished_or_undone(
    host: Host, folder: Path, finish: Callable[[Path], None]
) -> None:
    assert each_kill(host, folder, lambda: switch(folder), finish) > 20
    assert content(folder) == NEW and manifest.incomplete(str(folder)) is None


def test_an_undo_that_is_killed_anywhere_is_finished_by_the_next(host: Host, folder: Path) -> None:
    points = each_kill(host, folder, lambda: transaction.undo({}), undone, lambda: switch(folder))
    assert points > 15 and content(folder) == GOOD


def test_a_filesystem_without_hard_links_keeps_the_former_files_too(
    host: Host, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any, **more: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert each_kill(host, folder, lambda: switch(folder), undone) > 20
    assert each_kill(host, folder, lambda: switch(folder), gone_on_with) > 20


def test_what_was_half_a_set_before_is_told_as_one_after_the_undo(host: Host, folder: Path) -> None:
    reset(host, folder)
    with manifest.Folder(str(folder)).own() as own:
        manifest.mark_beside(own, "an-older-change")
    switch(folder)
    assert manifest.incomplete(str(folder)) is None
    assert transaction.undo({})["status"] == "ROLLED_BACK"
    assert manifest.incomplete(str(folder)) == "an-older-change"


def test_what_is_verified_is_looked_at(host: Host, folder: Path) -> None:
    reset(host, folder)
    switch(folder)
    (entry,) = journal.get("change-1")["steps"]
    kind = weights_set.SetKind(weights_set.SET_OP)
    assert kind.verify(entry, "post") == []
    assert len(kind.verify(entry, "pre")) == 4
    (folder / "a.bin").write_bytes(b"edited")
    (line,) = kind.verify(entry, "post")
    assert line.startswith(f"{folder}/a.bin is the file of inode") and "(6 bytes)" in line
    assert kind.describe(entry).endswith(f"kept in {folder}/.rigbook/displaced-change-1")


def test_a_part_that_is_gone_stays_unknown_and_can_be_undone(host: Host, folder: Path) -> None:
    for number in range(100):
        reset(host, folder)
        assert killed_before(number, lambda: switch(folder))
        if content(folder) not in (GOOD, NEW):
            break
    for path in (folder / ".rigbook").glob("*.whole"):
        path.unlink()
    recover()
    (entry,) = journal.get("change-1")["steps"]
    assert entry["state"] == "unknown" and entry["why"]
    undone(folder)


def test_a_name_that_became_a_folder_meanwhile_is_refused_and_nothing_is_lost(
    host: Host, folder: Path
) -> None:
    reset(host, folder)
    (folder / "a.bin").unlink()
    (folder / "a.bin").mkdir()
    with pytest.raises(NodeError, match=r"a\.bin is not a file"):
        switch(folder)
    assert (folder / "b.bin").read_bytes() == GOOD["b.bin"]
    assert transaction.undo({})["status"] == "ROLLED_BACK"
