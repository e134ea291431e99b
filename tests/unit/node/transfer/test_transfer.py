"""The transfer between two nodes over real sockets: keys, cuts, damage, resuming, and its end."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.transfer import client, protocol, spool, weights
from node.transfer.client import Sink
from tests.unit.node.support import transfers
from tests.unit.node.support.host import Host
from tests.unit.node.support.transfers import HERE, Ends, answer, content, files, wait_for

MIB = 1 << 20


def test_everything_arrives_and_a_second_run_moves_nothing(ends: Ends) -> None:
    made = files(ends.source, a_bin=3 * MIB + 17, b_bin=0, c_bin=1)
    (ends.source / "sub").mkdir()
    (ends.source / "sub" / "d").write_bytes(b"deep")
    got, gave = ends.move()
    assert got["ok"] and gave["ok"] and got["changed"]
    assert content(ends.target) == {**made, "sub/d": b"deep"} and ends.parts() == []
    again, gave = ends.move()
    assert again["ok"] and gave["ok"]
    assert (again["changed"], again["files"], again["bytes"]) == (False, [], 0)


def test_hashes_are_kept_beside_the_weights_and_forgotten_when_a_file_changes(ends: Ends) -> None:
    files(ends.source, a_bin=MIB, b_bin=MIB)
    _, gave = ends.move()
    assert gave["hashed"] == 2
    for folder in (ends.source, ends.target):
        rows = json.loads((folder / ".rigbook" / "manifest.json").read_text())["files"]
        assert [row["sha256"] is not None for row in rows] == [True, True]
    assert ends.giver.call("weights hash", {"path": str(ends.source)})["hashed"] == 0
    (ends.source / "a.bin").write_bytes(b"x" * MIB)
    got, _ = ends.move()
    assert got["files"] == ["a.bin"] and (ends.target / "a.bin").read_bytes() == b"x" * MIB


def test_a_wrong_key_gets_nothing_and_the_offer_goes_on(ends: Ends) -> None:
    made = files(ends.source, a_bin=MIB)
    with ends.offering() as offer:
        wrong = ends.taker.call("weights receive", ends.receive(key=secrets.token_hex(32)))
        assert (wrong["ok"], wrong["code"]) == (False, "wrong_key") and not ends.target.exists()
        assert ends.taker.call("weights receive", ends.receive())["ok"]
        assert answer(offer)["strangers"] >= 1
    assert content(ends.target) == made


def test_an_impostor_that_does_not_know_the_key_is_not_believed(ends: Ends) -> None:
    """Who took the port before the giver could gives nothing that is taken."""
    with socket.create_server((HERE, ends.port)) as impostor:

        def play() -> None:
            near, _ = impostor.accept()
            near.sendall(protocol.GREETING + bytes(protocol.NONCE))
            near.recv(1000)
            near.sendall(bytes(32))

        threading.Thread(target=play, daemon=True).start()
        got = ends.taker.call("weights receive", ends.receive())
    assert (got["ok"], got["code"]) == (False, "wrong_key")


def test_who_is_no_peer_is_not_greeted(ends: Ends) -> None:
    files(ends.source, a_bin=MIB)
    with ends.offering(peers=["127.0.0.9"]):
        wait_for(lambda: transfers.listening(ends.port))
        with pytest.raises(protocol.WireError):
            protocol.connect(HERE, ends.port, ends.key)


def test_it_listens_on_the_one_address_shows_no_key_and_is_gone_afterwards(ends: Ends) -> None:
    files(ends.source, a_bin=MIB)
    with ends.offering() as offer:
        wait_for(lambda: transfers.listening(ends.port))
        for name in ("cmdline", "environ"):
            assert ends.key.encode() not in Path(f"/proc/{offer.pid}/{name}").read_bytes()
        assert not transfers.listening(ends.port, "127.0.0.2")
        assert ends.taker.call("weights receive", ends.receive())["ok"]
        offer.wait(10)
        assert not transfers.listening(ends.port)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_listens_after_a_signal(ends: Ends, how: int) -> None:
    files(ends.source, a_bin=MIB)
    with ends.offering() as offer:
        transfers.kill_when(offer, lambda: transfers.listening(ends.port), how)
        assert not transfers.listening(ends.port)


def test_nothing_listens_once_the_reader_of_its_answer_is_gone(ends: Ends) -> None:
    """What an ssh session that broke looks like from here: nobody reads stdout any more."""
    files(ends.source, a_bin=MIB)
    with ends.offering() as offer:
        wait_for(lambda: transfers.listening(ends.port))
        assert offer.stdout is not None
        offer.stdout.close()
        assert offer.wait(5) == 1
        assert not transfers.listening(ends.port)
        offer.stdout = None


def test_nothing_listens_once_its_parent_is_gone(ends: Ends, tmp_path: Path) -> None:
    files(ends.source, a_bin=MIB)
    request = tmp_path / "request.json"
    request.write_text(json.dumps(ends.offer()))
    code = (
        "import subprocess,sys\n"
        f"subprocess.Popen({ends.giver.argv('weights offer')!r}, stdin=open({str(request)!r}))\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, env=ends.giver.environ())  # fmt: skip
    try:
        wait_for(lambda: transfers.listening(ends.port))
    finally:
        parent.kill()
    wait_for(lambda: not transfers.listening(ends.port), 5)
    parent.communicate()


def test_the_deadline_ends_an_offer_that_nobody_takes(ends: Ends) -> None:
    files(ends.source, a_bin=MIB)
    with ends.offering(deadline_s=1) as offer:
        assert answer(offer)["code"] == "deadline"


def test_a_port_that_is_taken_is_named(ends: Ends) -> None:
    files(ends.source, a_bin=MIB)
    with socket.create_server((HERE, ends.port)):
        got = ends.giver.call("weights offer", ends.offer())
    assert got["code"] == "port_taken" and str(ends.port) in got["error"]
    assert "--data port=" in got["remedy"]


def test_a_cut_in_the_middle_of_a_block_goes_on_from_there(ends: Ends) -> None:
    made = files(ends.source, a_bin=12 * MIB)
    spoil = transfers.Once(5 * MIB, lambda data: None, times=2)
    with ends.meddled(spoil):
        got, gave = ends.move(streams=1)
    assert got["ok"] and gave["ok"] and not spoil.left and content(ends.target) == made
    # The 5 MiB before each cut did not come twice.
    assert got["wire_bytes"] < 15 * MIB


def test_a_flipped_byte_is_found_and_only_its_block_comes_again(ends: Ends) -> None:
    made = files(ends.source, a_bin=12 * MIB)
    spoil = transfers.Once(6 * MIB, transfers.flipped)
    with ends.meddled(spoil):
        got, _ = ends.move(streams=1)
    assert got["ok"] and not spoil.left and content(ends.target) == made
    assert got["damaged"] == 1 and got["wire_bytes"] < 15 * MIB


def test_a_message_that_somebody_changed_is_refused(ends: Ends) -> None:
    """What the key protects is not only checked for accidents."""
    files(ends.source, a_bin=MIB)
    spoil = transfers.Once(-1, lambda data: data.replace(b'"a.bin"', b'"b.bin"', 1))
    with ends.meddled(spoil):
        got, _ = ends.move()
    assert not spoil.left and got["ok"] and list(content(ends.target)) == ["a.bin"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_taker_goes_on_where_it_was(ends: Ends, how: int) -> None:
    made = files(ends.source, a_bin=20 * MIB)
    ends.killed_taker(4 * MIB, how)
    there = ends.part_bytes()
    assert there > 4 * MIB and content(ends.target) == {}
    got, _ = ends.move()
    assert got["resumed_bytes"] == there and got["wire_bytes"] < 20 * MIB - there + 2 * MIB
    assert content(ends.target) == made


def test_a_killed_giver_leaves_no_half_file_under_its_name(ends: Ends) -> None:
    files(ends.source, a_bin=20 * MIB, b_bin=MIB)
    with ends.meddled(transfers.slow), ends.offering() as offer:
        taker = ends.start(ends.taker, "weights receive", ends.receive())
        transfers.kill_when(offer, lambda: ends.part_bytes() > 4 * MIB, signal.SIGKILL)
        assert "a.bin" not in content(ends.target)
        taker.send_signal(signal.SIGTERM)
        assert answer(taker)["code"] == "interrupted"
    assert "a.bin" not in content(ends.target) and ends.part_bytes() > 4 * MIB


def test_a_damaged_part_is_found_and_fetched_anew(ends: Ends) -> None:
    """A power cut may leave zeroes in a part: its end is the same length and another content."""
    made = files(ends.source, a_bin=20 * MIB)
    ends.killed_taker(2 * MIB)
    (part,) = ends.parts()
    with part.open("rb+") as file:
        file.write(bytes(4096))
    got, _ = ends.move()
    assert got["code"] == "not_the_same" and ends.parts() == [] and content(ends.target) == {}
    got, _ = ends.move()
    assert got["ok"] and content(ends.target) == made


def test_two_transfers_at_once_the_second_is_refused(ends: Ends) -> None:
    """The first is held in its middle until the second has answered, however long that takes."""
    files(ends.source, a_bin=20 * MIB)
    go_on = threading.Event()

    def hold(connection: int, offset: int, data: bytes) -> bytes:
        if offset > 2 * MIB:
            go_on.wait()
        return data

    with ends.meddled(hold), ends.offering(deadline_s=600):
        first = ends.start(ends.taker, "weights receive", ends.receive())
        try:
            wait_for(lambda: ends.part_bytes() > MIB, 300)
            second = ends.taker.call("weights receive", ends.receive())
            assert second["code"] == "transfer_runs" and f"pid {first.pid}" in second["error"]
        finally:
            first.kill()
            first.communicate()
            go_on.set()


def test_two_peers_get_it_at_the_same_time(ends: Ends, tmp_path: Path) -> None:
    made = files(ends.source, a_bin=6 * MIB, b_bin=3 * MIB)
    code = (
        "import json,sys,socket\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from node.transfer import protocol\n"
        "from node.transfer import weights\n"
        "protocol.bind_device = lambda sock, device: sock.bind((sys.argv[2], 0))\n"
        "print(json.dumps(weights.receive(json.loads(sys.argv[3]))))\n"
    )
    root = str(Path(__file__).resolve().parents[4])
    addresses = ("127.0.0.2", "127.0.0.3")
    with ends.offering(peers=list(addresses)) as offer:
        takers = []
        for number, address in enumerate(addresses):
            target = str(tmp_path / f"target{number}")
            argv = [sys.executable, "-c", code, root, address,
                    json.dumps(ends.receive(path=target))]  # fmt: skip
            env = {**os.environ, "RIGBOOK_STATE": str(tmp_path / f"state{number}")}
            takers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env))
        for taker in takers:
            taker.communicate(timeout=30)
            assert taker.returncode == 0
        gave = answer(offer)
    assert set(gave["peers"]) == set(addresses)
    assert content(tmp_path / "target0") == content(tmp_path / "target1") == made


def test_no_giver_is_told_with_the_way_that_was_tried(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 0.5)
    peer = client.Peer(ends.place(), ends.key, lambda: None)
    with pytest.raises(NodeError, match="no way to") as caught:
        peer.ask({"list": True})
    assert caught.value.code == "no_peer" and "ip route get" in caught.value.remedy


def test_a_device_that_is_not_there_is_no_way(ends: Ends) -> None:
    """Bound to the fabric's device, a transfer fails rather than take another route."""
    with pytest.raises(protocol.WireError, match="no way to"):
        protocol.connect(HERE, transfers.free_port(), ends.key, "nosuchdev0")


@pytest.mark.parametrize("name", ["../out", "/etc/x", ".rigbook/x", "a/../../x", "a\nb"])
def test_hostile_names_of_a_giver_are_refused(name: str) -> None:
    row = {"size": 1, "probe": "0" * 64, "sha256": None}
    good = weights._listed({"files": [{**row, "name": "-"}], "outside": []})
    assert good[0][0]["name"] == "-"
    for said in ({"files": [{**row, "name": name}], "outside": []},
                 {"files": [], "outside": [name]}):  # fmt: skip
        with pytest.raises(NodeError):
            weights._listed(said)


def test_extra_files_go_only_when_asked(ends: Ends) -> None:
    files(ends.source, a_bin=MIB)
    files(ends.target, old_bin=10)
    got, _ = ends.move()
    assert got["extra"] == ["old.bin"] and "old.bin" in content(ends.target)
    second = {"id": "change-2", "deploy": "weights", "operator": "t"}
    got, _ = ends.move(prune=True, change=second)
    assert got["code"] == "change_open"
    ends.taker.call("close", {"change": "change-1", "status": "COMMITTED"})
    got, _ = ends.move(prune=True, change=second)
    assert got["pruned"] == ["old.bin"] and list(content(ends.target)) == ["a.bin"]


def test_prune_deletes_the_extra_files_and_nothing_else(ends: Ends) -> None:
    files(ends.source, a_bin=MIB, README_md=10)
    made = files(ends.target, a_bin=MIB, README_md=10, old_bin=10, LICENSE=5)
    outside = ends.target.parent / "elsewhere.bin"
    outside.write_bytes(b"not in the folder")
    left = {".gitattributes": b"a", ".cache/huggingface/meta": b"b", "sub/.hidden": b"c"}
    for name, raw in {**left, "sub/extra.txt": b"d", ".rigbook/note": b"e"}.items():
        (ends.target / name).parent.mkdir(parents=True, exist_ok=True)
        (ends.target / name).write_bytes(raw)
    (ends.target / "empty").mkdir()
    (ends.target / "away.bin").symlink_to(outside)
    (ends.target / "alias.bin").symlink_to("a.bin")
    got, _ = ends.move(prune=True)
    assert got["pruned"] == got["extra"] == ["LICENSE", "alias.bin", "old.bin", "sub/extra.txt"]
    kept = {name: made[name] for name in ("a.bin", "README.md")}
    found = content(ends.target)
    assert found == {**kept, **left, "away.bin": b"not in the folder"}
    assert (ends.target / "away.bin").is_symlink() and (ends.target / "empty").is_dir()
    assert (ends.target / ".rigbook" / "note").read_bytes() == b"e"


def test_memory_stays_small(ends: Ends) -> None:
    files(ends.source, a_bin=64 * MIB, b_bin=64 * MIB, c_bin=64 * MIB, d_bin=64 * MIB)
    with ends.meddled(lambda number, offset, data: data), ends.offering() as offer:
        taker = ends.start(ends.taker, "weights receive", ends.receive())
        wait_for(lambda: ends.part_bytes() > 100 * MIB)
        peaks = [transfers.memory_peak_kb(process.pid) for process in (offer, taker)]
        got = answer(taker)
        assert got["ok"], got
    assert max(peaks) < 100 * 1024


# Where blocks are written: past the page cache where it can be, and always all of them.

PAGE = 4096


def aligned(raw: bytes) -> memoryview:
    """The bytes at the start of a page, as a line's buffer holds them."""
    buffer = mmap.mmap(-1, max(PAGE, len(raw)))
    buffer.write(raw)
    return memoryview(buffer)[: len(raw)]


def test_whole_pages_and_then_the_rest_arrive_in_order(tmp_path: Path) -> None:
    first, rest = os.urandom(4 * PAGE), os.urandom(1000)
    with Sink(str(tmp_path / "f"), 0, direct=True) as file:
        file.write(aligned(first))
        was = file.direct
        file.write(aligned(rest))
        assert not file.direct
    assert (tmp_path / "f").read_bytes() == first + rest
    # /tmp may be a tmpfs of an older kernel, which has no O_DIRECT at all
    fd = os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY)
    os.close(fd)
    try:
        os.close(os.open(tmp_path / "probe", os.O_WRONLY | os.O_DIRECT))
    except OSError:
        assert not was
    else:
        assert was


def test_bytes_anywhere_in_memory_and_any_offset_arrive(tmp_path: Path) -> None:
    """What came compressed lies where Python put it; a part may end anywhere."""
    raw = os.urandom(3 * PAGE + 7)
    (tmp_path / "f").write_bytes(raw[:777])
    with Sink(str(tmp_path / "f"), 777, direct=True) as file:
        file.write(raw[777:5000])
        file.write(memoryview(raw)[5000:])
    assert (tmp_path / "f").read_bytes() == raw


def test_a_write_that_fails_is_raised_at_the_latest_at_the_end(small_disk: Path) -> None:
    path = small_disk / "f"
    most = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    block = aligned(os.urandom(1 << 20))
    with pytest.raises(OSError, match="No space left"), Sink(str(path), 0, direct=True) as file:
        for _ in range(most // len(block) + 1):
            file.write(block)
    assert path.read_bytes()[: len(block)] == bytes(block)


def test_a_running_hash_takes_what_is_right_and_nothing_else() -> None:
    giver, taker = protocol.RunningDigest(), protocol.RunningDigest()
    word = giver.sent(b"one")
    assert not taker.came(b"onf", word)
    assert taker.came(b"one", word)
    assert taker.came(b"two", giver.sent(b"two"))
    assert taker.hexdigest() == giver.hexdigest()


# The spool's progress: what a person is told of a transfer, in its middle and at its end.

GB = 10**9


class Clock:
    """A stand-in for time.monotonic that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The progress of a state of its own, at a time that the test sets."""
    found = Clock()
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(spool.time, "monotonic", found)
    return found


def told() -> dict[str, Any]:
    """What the progress file says now."""
    raw = spool.progress("image")
    assert raw is not None
    found: dict[str, Any] = json.loads(raw)
    return found


def row(**changes: Any) -> dict[str, Any]:
    """A progress row: 1 of 4 GB in 10 s."""
    start = {"phase": "wire", "total": 4 * GB, "done": GB, "kept": 0, "rate": GB // 10}
    return {**start, "took_s": 10.0, **changes}


@pytest.mark.parametrize(("changes", "line"), [
    ({}, "1.00 of 4.00 GB, 25 %, 100 MB/s, about 30 s left"),
    ({"done": 3 * GB, "kept": 2 * GB},
     "3.00 of 4.00 GB (2.00 GB of an earlier run), 75 %, 100 MB/s, about 10 s left"),
    ({"rate": 0}, "1.00 of 4.00 GB, 25 %, 0 MB/s"),
    ({"total": 0, "done": 0, "rate": 0}, "0.00 of 0.00 GB, 100 %, 0 MB/s"),
    ({"phase": "sha256"}, "1.00 of 4.00 GB, 25 %, 100 MB/s, about 30 s left"),
    ({"phase": "docker load 1.20 GB", "took_s": 61.4},
     "docker load 1.20 GB: 4.00 GB are here, 61 s so far"),
])  # fmt: skip
def test_a_line_has_bytes_share_rate_and_estimate(changes: dict[str, Any], line: str) -> None:
    assert spool.progress_line(row(**changes)) == line


def test_progress_counts_the_rate_without_what_was_there_before(clock: Clock) -> None:
    progress = spool.Progress("image", 10 * GB, kept=4 * GB)
    assert (told()["done"], told()["kept"], told()["rate"]) == (4 * GB, 4 * GB, 0)
    clock.now += 10
    progress.add(GB)
    seen = told()
    assert (seen["done"], seen["rate"], seen["took_s"]) == (5 * GB, GB // 10, 10.0)
    said = "5.00 of 10.00 GB (4.00 GB of an earlier run), 50 %, 100 MB/s, about 50 s left"
    assert seen["line"] == said


def test_progress_takes_back_what_has_to_come_again_and_ends_with_its_file(clock: Clock) -> None:
    progress = spool.Progress("image", 4 * GB)
    for came in (2 * GB, -GB):
        clock.now += 1
        progress.add(came)
    assert told()["done"] == GB and told()["rate"] == GB // 2
    progress.end()
    progress.end()
    assert spool.progress("image") is None


def test_progress_is_written_twice_a_second_at_most_but_a_phase_at_once(clock: Clock) -> None:
    progress = spool.Progress("image", 4 * GB)
    clock.now += 0.4
    progress.add(GB)
    assert told()["done"] == 0
    progress.at("docker load")
    assert told()["phase"] == "docker load" and told()["done"] == GB
    clock.now += 0.6
    progress.add(GB)
    assert told()["done"] == 2 * GB


def held(host: Host) -> str:
    """What `rignode progress` says."""
    done = host.run(host.argv("progress"))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_console_says_that_no_transfer_runs(host: Host) -> None:
    assert held(host) == "no transfer runs\n" and not host.state.exists()
    done = host.run(host.argv("progress", "--nosuch"))
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_the_console_says_how_far_a_transfer_is(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs, after a kill, and of each kind by itself."""
    monkeypatch.setenv("RIGBOOK_STATE", str(host.state))
    with spool.TransferLock("weights"):
        assert held(host).startswith(f"weights: nothing came yet (pid {os.getpid()}, since ")
        progress = spool.Progress("weights", 4 * GB)
        progress.done = GB
        progress.at("wire")
        image = spool.Progress("image", 2 * GB)
        first, second = held(host).splitlines()
        assert first.startswith("image: was cut off at 0.00 of 2.00 GB, 0 %")
        assert second.startswith("weights: 1.00 of 4.00 GB, 25 %")
        assert f"(pid {os.getpid()}, since " in second
        image.end()
    assert held(host).startswith("weights: was cut off at 1.00 of 4.00 GB")
    (host.state / "spool" / "weights.progress").write_text("{")
    assert "damaged" in held(host)


def test_a_look_at_the_progress_refuses_no_transfer(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock shared for an instant; a second transfer is still refused."""
    monkeypatch.setenv("RIGBOOK_STATE", str(host.state))
    lock = Path(spool.ensure()) / "image.lock"
    lock.touch()
    looking = lock.open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.02, looking.close).start()
    with spool.TransferLock("image"), pytest.raises(NodeError, match="another transfer"):
        spool.TransferLock("image").__enter__()


def test_the_remedy_fits_the_filesystem_that_lacks_room(tmp_path: Path) -> None:
    """Pruning images gives no room for weights, nor for a spool on another filesystem."""
    needs = [(str(tmp_path / "there" / "not"), 1 << 60)]
    cases = {None: False, str(tmp_path / "docker"): True, "/proc": False}
    for docker, prunes in cases.items():
        with pytest.raises(NodeError, match="the transfer needs") as caught:
            spool.require_room(needs, docker)
        assert caught.value.code == "no_room" and f"df -h {tmp_path};" in caught.value.remedy
        assert ("docker image prune" in caught.value.remedy) == prunes


# Who stands in the line, or gives more than was said: nothing is written that the key and the
# listing do not vouch for.

GREETED = len(protocol.GREETING) + protocol.NONCE + 32


class Inserting:
    """A real man in the middle: he relays the handshake and every message, and behind the first
    block of the giver he puts blocks of his own, `make(first block's frame)`, `times` times."""

    def __init__(self, make: Callable[[bytes], bytes], times: int) -> None:
        self.make, self.left = make, times
        self._seen: dict[int, bytes] = {}

    def __call__(self, connection: int, offset: int, data: bytes) -> bytes:
        seen = self._seen[connection] = self._seen.get(connection, b"") + data
        at, wanted = GREETED, len(seen) - len(data)
        while at + 9 <= len(seen):
            kind, length, _ = struct.unpack_from("!cII", seen, at)
            end = at + 9 + 32 + length
            if kind == b"D" and at + 9 + 32 + length <= len(seen) and end > wanted and self.left:
                self.left -= 1
                return seen[wanted:end] + self.make(seen[at:end]) + seen[end:]
            at = end
        return data


def forged(_frame: bytes) -> bytes:
    """A block of his own, with the checksum that belongs to it."""
    block = bytes(MIB)
    return struct.pack("!cII", b"D", len(block), zlib.crc32(block)) + bytes(32) + block


def replayed(frame: bytes) -> bytes:
    """The giver's own block again, word by word."""
    return frame


@pytest.mark.parametrize("blocks", [1, 100])
@pytest.mark.parametrize("make", [forged, replayed])
def test_blocks_that_a_man_in_the_middle_inserts_are_not_written(
    ends: Ends, make: Callable[[bytes], bytes], blocks: int
) -> None:
    made = files(ends.source, a_bin=2 * MIB)
    # a giver that knew the hash had its blocks checked by a CRC-32 alone, which anybody can make
    assert ends.giver.call("weights hash", {"path": str(ends.source)})["ok"]
    spoil = Inserting(lambda frame: make(frame) * blocks, times=1)
    with ends.meddled(spoil):
        got, _ = ends.move(streams=1)
    assert spoil.left == 0 and got["ok"], got
    assert got["damaged"] == 1 and content(ends.target) == made and ends.parts() == []


def test_a_man_in_the_middle_who_never_stops_writes_nothing_beyond_the_size(ends: Ends) -> None:
    files(ends.source, a_bin=32 * MIB)
    with ends.meddled(Inserting(lambda frame: forged(frame) * 40, times=1000)):
        got, _ = ends.move(streams=1)
    assert (got["ok"], got["code"]) == (False, "damaged") and "ethtool" in got["remedy"]
    assert ends.part_bytes() <= 32 * MIB and content(ends.target) == {}


def giving(blocks: int) -> Callable[[protocol.Connection], None]:
    """A giver that knows the key and gives this many MiB, whatever it was asked for."""

    def play(line: protocol.Connection) -> None:
        while "get" not in line.receive_message():
            pass
        for _ in range(blocks):
            line.send(bytes(MIB))
        line.send_message({"end": True, "sha256": "0" * 64})

    return play


@pytest.mark.parametrize("blocks", [1, 50])
@pytest.mark.parametrize("hashed", [True, False])
def test_a_giver_of_more_or_less_than_it_said_leaves_nothing(
    tmp_path: Path, hashed: bool, blocks: int
) -> None:
    """Weights are hashed here; docker hashes layers, which stayed in the spool and grew."""
    path = tmp_path / "part"
    largest = 0

    def grown(count: int) -> None:
        nonlocal largest
        largest = max(largest, path.stat().st_size)

    with transfers.giver(giving(blocks)) as (place, key):
        peer = client.Peer(place, key, lambda: None)
        with pytest.raises(NodeError) as caught:
            if hashed:
                client.fetch(peer, 0, str(path), 2 * MIB, None, grown, None)
            else:
                client.fetch_without_digest(peer, 0, str(path), 2 * MIB, grown)
    assert caught.value.code == "not_the_same" and f"{2 * MIB} bytes" in str(caught.value)
    assert largest <= 2 * MIB and not path.exists()


def test_what_an_earlier_run_left_too_long_is_fetched_anew(ends: Ends, tmp_path: Path) -> None:
    made = files(ends.source, a_bin=MIB + 5)
    path = tmp_path / "part"
    path.write_bytes(bytes(3 * MIB))
    with ends.offering():
        peer = client.Peer(ends.place(), ends.key, lambda: None)
        client.fetch_without_digest(peer, 0, str(path), MIB + 5, lambda count: None)
        peer.bye(None)
    assert path.read_bytes() == made["a.bin"]


def test_a_stream_that_fails_ends_the_others_in_the_middle_of_their_files(ends: Ends) -> None:
    """b.bin is another file by the time that it is asked for; a.bin needs seconds to come."""
    files(ends.source, a_bin=96 * MIB, b_bin=MIB)
    other = ends.source / "b.bin"

    def spoil(connection: int, offset: int, data: bytes) -> bytes:
        if b'"b.bin"' in data:
            os.utime(other, ns=(1, 1))
        until = time.monotonic() + 30
        # once some of a.bin is there, on a machine that has much else to do
        while b"is written to" in data and not ends.part_bytes() and time.monotonic() < until:
            time.sleep(0.01)
        return transfers.slow(connection, offset, data)

    with ends.meddled(spoil):
        got, _ = ends.move(streams=2)
    assert not got["ok"] and "b.bin is written to while it is given" in got["error"], got
    assert 0 < ends.part_bytes() < 64 * MIB


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_who_connects_and_proves_nothing_holds_few_threads_and_nobody_up(ends: Ends) -> None:
    """Any user of a peer's host can connect to the giver, as often as he likes."""
    made = files(ends.source, a_bin=MIB)
    silent: list[socket.socket] = []
    with ends.offering() as offer:
        wait_for(lambda: transfers.listening(ends.port))
        try:
            silent += [socket.create_connection((HERE, ends.port)) for _ in range(300)]
            # long before a silent one is given up by itself
            wait_for(lambda: threads(offer.pid) <= protocol.MAX_UNPROVEN + 4, 10)
            got = ends.taker.call("weights receive", ends.receive())
            assert got["ok"] and content(ends.target) == made, got
            assert answer(offer)["ok"]
        finally:
            for sock in silent:
                sock.close()
