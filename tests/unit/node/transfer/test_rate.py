"""rate: seconds of TCP streams over loopback, and ib_write_bw's own figures from what it prints."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.transfer import protocol

KEY, OTHER = "a" * 64, "b" * 64
RDMA = {"device": "rocep1s0f0", "port": 1, "gid": 3}
# perftest with -D 5 between two ConnectX at 100 Gbit/s: no peak, and a line about the CPU between.
PRINTED = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
 Link type       : Ethernet
 GID index       : 4
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x008a PSN 0xfffb6d RKey 0x238f86 VAddr 0x007dd5a3cfd000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:06:116
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 65536      560845           0.00               98.02                0.186950
---------------------------------------------------------------------------------------
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends wait for each other for less than a second."""
    monkeypatch.setattr(protocol, "MEET_S", 0.8)
    monkeypatch.setattr(protocol, "_PAUSE_S", 0.01)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    yield tmp_path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def request(place: str, port: int, **changes: Any) -> dict[str, Any]:
    """What one end is asked."""
    ours = {"peer": "127.0.0.1"} if place == "listen" else {}
    where = {"address": "127.0.0.1", "port": port, "device": None}
    return {place: where, "key": KEY, "seconds": 1, "rdma": None, **ours, **changes}


def both(port: int, **sender: Any) -> list[Any]:
    """What came of the receiver and of the sender: an answer, or the error's code."""

    def end(call: Any, asked: dict[str, Any]) -> Any:
        try:
            return call(asked)
        except NodeError as error:
            return error.code

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(end, protocol.receive_rate, request("listen", port)),
                pool.submit(end, protocol.send_rate, request("to", port, **sender))]  # fmt: skip
        return [job.result(20) for job in jobs]


def test_streams_for_a_second() -> None:
    began = time.monotonic()
    received, sent = both(free_port())
    assert 1 < time.monotonic() - began < 2.5
    assert received["gbit_s"] > 0.05 and sent == {"gbit_s": None}


def test_who_does_not_know_the_key_is_no_peer() -> None:
    received, _ = both(free_port(), key=OTHER)
    assert received == "no_peer"


def test_who_calls_from_elsewhere_is_no_peer() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(protocol.receive_rate, request("listen", port, peer="127.0.0.2"))
        time.sleep(0.1)
        caller = socket.create_connection(("127.0.0.1", port), timeout=3)
        # hung up on, with or without having been read
        with caller, contextlib.suppress(ConnectionResetError):
            caller.sendall(KEY.encode())
            assert caller.recv(1) == b""
        with pytest.raises(NodeError, match=r"nobody called in 0\.8 s"):
            job.result(20)


def test_nobody_on_the_other_end_is_told_soon() -> None:
    with pytest.raises(NodeError, match=r"no way to 127\.0\.0\.1:\d+: Connection refused") as lost:
        protocol.send_rate(request("to", free_port()))
    assert lost.value.code == "no_peer" and "nft list ruleset" in lost.value.remedy
    with pytest.raises(NodeError, match=r"nobody called"):
        protocol.receive_rate(request("listen", free_port()))


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(NodeError) as refused:
        protocol.receive_rate(request("listen", server.getsockname()[1]))
    assert refused.value.code == "port_taken"


def perftest(folder: Path, script: str) -> None:
    (folder / "printed").write_text(PRINTED)
    (folder / "ib_write_bw").write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{script}\n')
    (folder / "ib_write_bw").chmod(0o755)


def test_the_average_is_perftests_own(tools: Path) -> None:
    """The client starts again until its server is there."""
    first = f'[ "$(wc -l < {tools}/calls)" = 1 ] && echo "Couldn\'t connect" >&2 && exit 1'
    perftest(tools, f"{first}\ncat {tools}/printed")
    assert protocol.look_at_rate({}) == {"ib_write_bw": True}
    assert protocol.send_rate(request("to", 29680, rdma=RDMA)) == {"gbit_s": 98.02}
    assert protocol.receive_rate(request("listen", 29680, rdma=RDMA)) == {"gbit_s": None}
    words = "-d rocep1s0f0 -i 1 -x 3 -F -D 1 --report_gbits -p 29680"
    assert (tools / "calls").read_text().splitlines() == [f"{words} 127.0.0.1"] * 2 + [words]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'Unable to open file descriptor vfs' >&2; exit 1",
            "rocep1s0f0: Unable to open file",
        ),
        ("sleep 30", "ib_write_bw did not answer in 1.8 s"),
        ("exit 0", "ib_write_bw printed no row of figures"),
    ],
)
def test_what_perftest_cannot_do_is_told(tools: Path, script: str, said: str) -> None:
    perftest(tools, script)
    with pytest.raises(NodeError, match=said):
        protocol.send_rate(request("to", 29680, rdma=RDMA))


def test_without_perftest(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(protocol, "which", lambda _: None)
    assert protocol.look_at_rate({}) == {"ib_write_bw": False}


@pytest.mark.parametrize(
    "changes",
    [{"seconds": 0}, {"seconds": 31}, {"key": "x"}, {"rdma": {"device": "-d", "port": 1, "gid": 0}},
     {"rdma": {**RDMA, "gid": -1}}, {"rdma": {**RDMA, "port": 0}}, {"peer": "x"}, {"more": 1}],
)  # fmt: skip
def test_a_request_that_makes_no_sense(changes: dict[str, Any]) -> None:
    for call, place in ((protocol.receive_rate, "listen"), (protocol.send_rate, "to")):
        with pytest.raises(NodeError):
            call(request(place, 29680, **changes))
