"""The transfer between two nodes over real sockets: keys, cuts, damage, resuming, and its end."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node.core.errors import NodeError
from node.transfer import client, protocol
from node.weights import receive as weights_receive
from tests.unit.node.support import transfers as t
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
        wait_for(lambda: t.listening(ends.port))
        with pytest.raises(protocol.WireError):
            protocol.connect(HERE, ends.port, ends.key)


def test_it_listens_on_the_one_address_shows_no_key_and_is_gone_afterwards(ends: Ends) -> None:
    files(ends.source, a_bin=MIB)
    with ends.offering() as offer:
        wait_for(lambda: t.listening(ends.port))
        for name in ("cmdline", "environ"):
            assert ends.key.encode() not in Path(f"/proc/{offer.pid}/{name}").read_bytes()
        assert not t.listening(ends.port, "127.0.0.2")
        assert ends.taker.call("weights receive", ends.receive())["ok"]
        offer.wait(10)
        assert not t.listening(ends.port)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_listens_after_a_signal(ends: Ends, how: int) -> None:
    files(ends.source, a_bin=MIB)
    with ends.offering() as offer:
        t.kill_when(offer, lambda: t.listening(ends.port), how)
        assert not t.listening(ends.port)


def test_nothing_listens_once_the_reader_of_its_answer_is_gone(ends: Ends) -> None:
    """What an ssh session that broke looks like from here: nobody reads stdout any more."""
    files(ends.source, a_bin=MIB)
    with ends.offering() as offer:
        wait_for(lambda: t.listening(ends.port))
        assert offer.stdout is not None
        offer.stdout.close()
        assert offer.wait(5) == 1
        assert not t.listening(ends.port)
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
        wait_for(lambda: t.listening(ends.port))
    finally:
        parent.kill()
    wait_for(lambda: not t.listening(ends.port), 5)
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
    spoil = t.Once(5 * MIB, lambda data: None, times=2)
    with ends.meddled(spoil):
        got, gave = ends.move(streams=1)
    assert got["ok"] and gave["ok"] and not spoil.left and content(ends.target) == made
    # The 5 MiB before each cut did not come twice.
    assert got["wire_bytes"] < 15 * MIB


def test_a_flipped_byte_is_found_and_only_its_block_comes_again(ends: Ends) -> None:
    made = files(ends.source, a_bin=12 * MIB)
    spoil = t.Once(6 * MIB, t.flipped)
    with ends.meddled(spoil):
        got, _ = ends.move(streams=1)
    assert got["ok"] and not spoil.left and content(ends.target) == made
    assert got["damaged"] == 1 and got["wire_bytes"] < 15 * MIB


def test_a_message_that_somebody_changed_is_refused(ends: Ends) -> None:
    """What the key protects is not only checked for accidents."""
    files(ends.source, a_bin=MIB)
    spoil = t.Once(-1, lambda data: data.replace(b'"a.bin"', b'"b.bin"', 1))
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
    with ends.meddled(t.slow), ends.offering() as offer:
        taker = ends.start(ends.taker, "weights receive", ends.receive())
        t.kill_when(offer, lambda: ends.part_bytes() > 4 * MIB, signal.SIGKILL)
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
        "from node.weights import receive\n"
        "protocol.bind_device = lambda sock, device: sock.bind((sys.argv[2], 0))\n"
        "print(json.dumps(receive.receive(json.loads(sys.argv[3]))))\n"
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
        protocol.connect(HERE, t.free_port(), ends.key, "nosuchdev0")


@pytest.mark.parametrize("name", ["../out", "/etc/x", ".rigbook/x", "a/../../x", "a\nb"])
def test_hostile_names_of_a_giver_are_refused(name: str) -> None:
    row = {"size": 1, "probe": "0" * 64, "sha256": None}
    good = weights_receive._listed({"files": [{**row, "name": "-"}], "outside": []})
    assert good[0][0]["name"] == "-"
    for said in ({"files": [{**row, "name": name}], "outside": []},
                 {"files": [], "outside": [name]}):  # fmt: skip
        with pytest.raises(NodeError):
            weights_receive._listed(said)


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
        peaks = [t.memory_peak_kb(process.pid) for process in (offer, taker)]
        got = answer(taker)
        assert got["ok"], got
    assert max(peaks) < 100 * 1024
