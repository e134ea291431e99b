"""rate: how fast the fabric is between two nodes, for a few seconds: RDMA writes, or TCP streams.

Nothing is written anywhere; a few MiB of memory are all that it takes. What is not over after its
seconds is ended, whoever waits for it.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time
from typing import Any

from node.core import validate
from node.core.errors import Json, NodeError
from node.core.run import TimedOut, run, which
from node.transfer import protocol, server

PERFTEST = "ib_write_bw"
# One stream is bound by one core: 34 Gbit/s between two DGX Spark, four of them 93.
STREAMS = 4
# How long the two ends wait for each other.
MEET_S = 15.0
_PAUSE_S = 0.2
_BLOCK = 1 << 20


def look(request: Json) -> Json:
    """Gives whether ib_write_bw (package perftest) is installed."""
    validate.keys(request, "request", ())
    return {PERFTEST: which(PERFTEST) is not None}


def _request(request: Json, place: str) -> Json:
    """Gives a request with every value checked; `place` is where the receiver listens."""
    keys = (place, "peer", "key", "seconds", "rdma")
    body = validate.keys(request, "request", keys, (place, "key", "seconds"))
    rdma = body.get("rdma")
    return {
        **server.parse_address(body[place]),
        "peer": None if body.get("peer") is None else validate.address(body["peer"], "peer"),
        "key": validate.key(body["key"], "key").encode(),
        "seconds": validate.number(body["seconds"], "seconds", 1, 30),
        "rdma": None if rdma is None else _rdma(rdma),
    }


def _rdma(value: Any) -> Json:
    """Gives a checked port of an RDMA device, with the row of its GID table."""
    names = ("device", "port", "gid")
    row = validate.keys(value, "rdma", names, names)
    return {
        "device": validate.hca(row["device"], "rdma.device"),
        "port": int(validate.number(row["port"], "rdma.port", 1, 255)),
        "gid": int(validate.number(row["gid"], "rdma.gid", 0, 1023)),
    }


def receive(request: Json) -> Json:
    """Takes what the peer sends; gives `gbit_s`, as it came here (None: RDMA, the sender knows).

    Raises NodeError: `no_address`, `port_taken`, `no_peer`, `no_tool`, `rate`.
    """
    wanted = _request(request, "listen")
    if wanted["rdma"] is not None:
        _perftest(wanted, [])
        return {"gbit_s": None}
    with server.listener(wanted) as door:
        streams = _accept(door, wanted)
    counts = [0] * STREAMS
    began = time.monotonic()
    ended = [began] * STREAMS

    def drain(number: int) -> None:
        buffer = bytearray(_BLOCK)
        with contextlib.suppress(OSError):
            while got := streams[number].recv_into(buffer):
                counts[number] += got
                ended[number] = time.monotonic()

    _together(drain, wanted["seconds"])
    for stream in streams:
        stream.close()
    seconds = max(ended) - began
    if not sum(counts) or seconds <= 0:
        raise NodeError("nothing came", "no_peer")
    return {"gbit_s": sum(counts) * 8 / seconds / 1e9}


def send(request: Json) -> Json:
    """Sends for so many seconds; gives `gbit_s` of RDMA writes (None: TCP, the receiver knows).

    Raises NodeError: `no_peer`, `no_tool`, `rate`.
    """
    wanted = _request(request, "to")
    if wanted["rdma"] is not None:
        return {"gbit_s": _average(_perftest(wanted, [wanted["address"]]))}
    streams = [_call(wanted) for _ in range(STREAMS)]
    until = time.monotonic() + wanted["seconds"]
    block = memoryview(bytes(_BLOCK))

    def fill(number: int) -> None:
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                streams[number].sendall(block)
        streams[number].close()

    _together(fill, wanted["seconds"])
    return {"gbit_s": None}


def _together(work: Any, seconds: float) -> None:
    """Runs `work` for each stream; daemons, so that none outlives the program."""
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(STREAMS)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds + MEET_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _accept(door: socket.socket, wanted: Json) -> list[socket.socket]:
    """Gives the peer's streams, those alone that show the key."""
    deadline = time.monotonic() + MEET_S
    streams: list[socket.socket] = []
    while len(streams) < STREAMS:
        left = deadline - time.monotonic()
        if left <= 0:
            raise NodeError(f"nobody called in {MEET_S:g} s", "no_peer")
        door.settimeout(left)
        with contextlib.suppress(OSError):
            stream, caller = door.accept()
            stream.settimeout(min(2.0, left))
            if caller[0] == wanted["peer"] and _shows(stream, wanted["key"]):
                stream.settimeout(MEET_S)
                streams.append(stream)
            else:
                stream.close()
    return streams


def _shows(stream: socket.socket, key: bytes) -> bool:
    """Gives whether a caller knows the key, within 2 s."""
    shown = b""
    while len(shown) < len(key):
        part = stream.recv(len(key) - len(shown))
        if not part:
            return False
        shown += part
    return hmac.compare_digest(shown, key)


def _call(wanted: Json) -> socket.socket:
    """Gives a stream to the receiver, which may still be starting."""
    deadline = time.monotonic() + MEET_S
    where = f"{wanted['address']}:{wanted['port']}"
    while True:
        stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            protocol.bind_device(stream, wanted["device"])
            stream.settimeout(2.0)
            stream.connect((wanted["address"], wanted["port"]))
            stream.sendall(wanted["key"])
            stream.settimeout(MEET_S)
            return stream
        except OSError as error:
            stream.close()
            if time.monotonic() >= deadline:
                why = f"no way to {where}: {error.strerror or error}"
                mend = "sudo nft list ruleset there: is the port let in?"
                raise NodeError(why, "no_peer", mend) from None
            time.sleep(_PAUSE_S)


def _perftest(wanted: Json, peer: list[str]) -> str:
    """Gives what ib_write_bw printed; a client is started again until its server is there."""
    port = wanted["rdma"]
    argv = [PERFTEST, "-d", port["device"], "-i", str(port["port"]), "-x", str(port["gid"])]
    argv += ["-F", "-D", f"{wanted['seconds']:.0f}", "--report_gbits", "-p", str(wanted["port"])]
    deadline = time.monotonic() + MEET_S
    while True:
        try:
            done = run([*argv, *peer], wanted["seconds"] + MEET_S)
        except FileNotFoundError:
            missing = f"{PERFTEST} is not installed"
            raise NodeError(missing, "no_tool", "sudo apt install perftest") from None
        except TimedOut as error:
            raise NodeError(str(error), "rate") from None
        if done.rc == 0:
            return done.out
        if not peer or time.monotonic() >= deadline:
            raise NodeError(f"{PERFTEST} on {port['device']}: {done.last_line()}", "rate")
        time.sleep(_PAUSE_S)


def _average(text: str) -> float:
    """Gives the column `BW average[Gb/sec]` of the one row of figures."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0].isdigit() and words[1].isdigit():
            return float(words[3])
    raise NodeError(f"{PERFTEST} printed no row of figures", "rate")
