"""Who stands in the line, or gives more than was said: nothing is written that the key and the
listing do not vouch for."""

from __future__ import annotations

import os
import socket
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from node.core.errors import NodeError
from node.transfer import client, protocol, server
from tests.unit.node.support import transfers as t
from tests.unit.node.support.transfers import HERE, Ends, answer, content, files, wait_for

MIB = 1 << 20
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

    with t.giver(giving(blocks)) as (place, key):
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
        return t.slow(connection, offset, data)

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
        wait_for(lambda: t.listening(ends.port))
        try:
            silent += [socket.create_connection((HERE, ends.port)) for _ in range(300)]
            # long before a silent one is given up by itself
            wait_for(lambda: threads(offer.pid) <= server.MAX_UNPROVEN + 4, 10)
            got = ends.taker.call("weights receive", ends.receive())
            assert got["ok"] and content(ends.target) == made, got
            assert answer(offer)["ok"]
        finally:
            for sock in silent:
                sock.close()
