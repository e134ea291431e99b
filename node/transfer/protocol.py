"""What two nodes say to each other over a plain TCP stream: who they are, requests, blocks of data.

A one-time key proves both ends (HMAC-SHA256 over two nonces) and every frame: its place in the
stream, its kind and length, a message whole. A block carries a check word, which finds the byte
that the wire flipped where it flipped: the first four bytes of the sha256 of all of the item so
far, or, where an item is not hashed from its beginning, a CRC-32. What a whole item is worth is its
sha256, which comes in an answer that the key protects. Nothing is encrypted.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import hashlib
import hmac
import json
import mmap
import os
import secrets
import select
import signal
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from node.core import validate
from node.core.dirfd import BLOCK
from node.core.errors import Json, NodeError
from node.core.run import TimedOut, run, which

GREETING = b"RIGBOOK3"
NONCE = MAC = 32
MAX_JSON = 32 << 20
# A peer that says nothing for this long is gone: the receiver asks again from where it is.
SILENCE_S = 15.0
_HEAD = struct.Struct("!cII")
_MESSAGE, _DATA = b"J", b"D"
Bytes = bytes | bytearray | memoryview


class WireError(Exception):
    """The line broke or said something that it may not; the text is the reason."""


class Damaged(WireError):
    """A block that is not what was sent."""


class Closed(WireError):
    """The other end hung up in good order."""


class Refused(WireError):
    """The other end does not know the key."""


class HandshakeAborted(Refused):
    """The other end hung up on the proof: it does not know the key, or the line was lost."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"\0".join(parts), hashlib.sha256).digest()


class RunningDigest:
    """The sha256 of an item so far, at one end; a block is right when both ends agree after it."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def _word(self) -> int:
        return int.from_bytes(self._digest.digest()[:4], "big")

    def update(self, block: Bytes) -> None:
        """Takes bytes that something else has checked."""
        self._digest.update(block)

    def sent(self, block: Bytes) -> int:
        """Takes a block; gives its check word."""
        self._digest.update(block)
        return self._word()

    def came(self, block: Bytes, word: int) -> bool:
        """Takes a block if it is what the other end sent; gives whether it is."""
        before = self._digest.copy()
        self._digest.update(block)
        if self._word() != word:
            self._digest = before
        return self._digest is not before

    def hexdigest(self) -> str:
        """Gives the sha256 of what was taken."""
        return self._digest.hexdigest()


class Connection:
    """One authenticated connection; made by `accept_handshake` or `connect`.

    Every method raises WireError when the line breaks, stays silent for SILENCE_S, or lies.
    """

    def __init__(self, sock: socket.socket, session: bytes, server: bool) -> None:
        self.sock = sock
        self._session = session
        self._ways = (b"s", b"c") if server else (b"c", b"s")
        self._counts = [0, 0]
        # Whole pages: a block can be written from here past the page cache, and while the next one
        # comes (node/transfer/client.py).
        self._buffers = (mmap.mmap(-1, BLOCK), mmap.mmap(-1, BLOCK))
        self._blocks = 0
        self.wire_bytes = 0

    def close(self) -> None:
        """End the connection."""
        self.sock.close()

    def _signed(self, way: int, head: bytes, payload: bytes = b"") -> bytes:
        self._counts[way] += 1
        return _mac(self._session, self._ways[way], b"%d" % self._counts[way], head, payload)

    def send_message(self, message: Json) -> None:
        """Send a message."""
        payload = json.dumps(message, separators=(",", ":")).encode()
        head = _HEAD.pack(_MESSAGE, len(payload), 0)
        _send(self.sock, head + self._signed(0, head, payload) + payload)

    def send(self, block: Bytes, running: RunningDigest | None = None) -> None:
        """Send a block of data of at most BLOCK bytes.

        `running`: what checks it, in place of a CRC-32.
        """
        word = running.sent(block) if running else zlib.crc32(block)
        head = _HEAD.pack(_DATA, len(block), word)
        _send(self.sock, head + self._signed(0, head))
        _send(self.sock, block)
        self.wire_bytes += _HEAD.size + MAC + len(block)

    def receive(self, running: RunningDigest | None = None) -> tuple[Json | None, memoryview]:
        """Gives the next message, or None and a block of data (valid until the second block after).

        `running`: what the other end checks blocks with; it takes each one that is right.
        """
        came = bytes(_receive(self.sock, bytearray(_HEAD.size + MAC)))
        head, mac = came[: _HEAD.size], came[_HEAD.size :]
        kind, length, word = _HEAD.unpack(head)
        self.wire_bytes += len(came) + length
        if kind == _MESSAGE and length <= MAX_JSON:
            payload = bytes(_receive(self.sock, bytearray(length)))
            if not hmac.compare_digest(mac, self._signed(1, head, payload)):
                raise WireError("a message was not made with this transfer's key")
            return _object(payload), memoryview(b"")
        if not hmac.compare_digest(mac, self._signed(1, head)):
            raise Damaged("the head of a block was damaged, or is not of this transfer")
        if kind != _DATA or length > BLOCK:
            raise WireError("the other end does not keep to the protocol")
        self._blocks += 1
        block = _receive(self.sock, self._buffers[self._blocks % 2], length)
        right = running.came(block, word) if running else zlib.crc32(block) == word
        if not right:
            raise Damaged("a block was damaged on the wire")
        return None, block

    def receive_message(self) -> Json:
        """Gives the next message; an `error` in it is raised as WireError."""
        found, _ = self.receive()
        if found is None:
            raise WireError("data came where an answer was due")
        if "error" in found:
            raise WireError(str(found["error"]))
        return found


def _object(payload: bytes) -> Json:
    try:
        found: Any = json.loads(payload)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WireError("a message is not an object")
    return found


def _send(sock: socket.socket, data: Bytes) -> None:
    try:
        sock.sendall(data)
    except BlockingIOError:
        raise WireError(f"nothing was taken for {SILENCE_S:g} s") from None
    except OSError as error:
        raise WireError(f"the connection broke: {error}") from None


def _receive(sock: socket.socket, into: bytearray | mmap.mmap, length: int = -1) -> memoryview:
    """Fills `length` bytes of `into` (all of it by default); gives them."""
    wanted = memoryview(into)[: len(into) if length < 0 else length]
    got = 0
    while got < len(wanted):
        try:
            count = sock.recv_into(wanted[got:], 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise WireError(f"nothing came for {SILENCE_S:g} s") from None
        except OSError as error:
            raise WireError(f"the connection broke: {error}") from None
        if not count:
            raise Closed("the other end closed the connection")
        got += count
    return wanted


def _ready(sock: socket.socket) -> None:
    # The kernel's own time limit: with Python's each call would poll first, and none could wait
    # for a whole block.
    sock.settimeout(None)
    limit = struct.pack("@ll", int(SILENCE_S), int(SILENCE_S % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def accept_handshake(sock: socket.socket, key: str) -> Connection:
    """The listening end's half of the proof. Raises Refused for another key."""
    _ready(sock)
    secret, own = bytes.fromhex(key), secrets.token_bytes(NONCE)
    _send(sock, GREETING + own)
    said = bytes(_receive(sock, bytearray(NONCE + MAC)))
    theirs, proof = said[:NONCE], said[NONCE:]
    if not hmac.compare_digest(proof, _mac(secret, b"client", own, theirs)):
        raise Refused("a caller does not know the key")
    _send(sock, _mac(secret, b"server", theirs, own))
    return Connection(sock, _mac(secret, b"session", own, theirs), server=True)


def connect(address: str, port: int, key: str, device: str | None = None) -> Connection:
    """Connect and prove both ends; out of `device` alone, where one is given.

    Raises Refused for another key, WireError when there is no way or no listener.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bind_device(sock, device)
        sock.settimeout(5.0)
        sock.connect((address, port))
        _ready(sock)
        greeting = bytes(_receive(sock, bytearray(len(GREETING) + NONCE)))
        if not greeting.startswith(GREETING):
            raise WireError(f"what listens at {address}:{port} is not rigbook")
        secret, own, theirs = bytes.fromhex(key), secrets.token_bytes(NONCE), greeting[8:]
        _send(sock, own + _mac(secret, b"client", theirs, own))
        try:
            proof = bytes(_receive(sock, bytearray(MAC)))
        except Closed:
            raise HandshakeAborted(
                f"{address}:{port} refuses the key: another transfer's?"
            ) from None
        if not hmac.compare_digest(proof, _mac(secret, b"server", own, theirs)):
            raise Refused(f"what listens at {address}:{port} does not know the key")
        return Connection(sock, _mac(secret, b"session", theirs, own), server=False)
    except OSError as error:
        sock.close()
        raise WireError(f"no way to {address}:{port}: {error.strerror or error}") from None
    except BaseException:
        sock.close()
        raise


def bind_device(sock: socket.socket, device: str | None) -> None:
    """Let a socket's traffic take one network device only; needs root."""
    if device:
        option = getattr(socket, "SO_BINDTODEVICE", 25)
        sock.setsockopt(socket.SOL_SOCKET, option, device.encode() + b"\0")


# The giving end of a transfer: listens for this one transfer, on one address, and is gone after.
#
# It ends when every peer has said that it is done, and also: at its deadline, when no peer was
# heard
# for IDLE_S, at a signal, and when whoever started it is gone (the parent, or the reader of
# stdout,
# which is the ssh session). Its threads are daemons: nothing listens longer than the process
# lives.

# Longer than a receiver goes on trying (node/transfer/client.py), so that a link may flap.
IDLE_S = 90.0
MAX_PEERS = 64
# Connections that have not proven themselves yet: with one more the oldest of them goes.
MAX_UNPROVEN = 32


class Source(abc.ABC):
    """What is offered: a listing, and items by number. A subclass says what they are."""

    @abc.abstractmethod
    def listing(self) -> Json:
        """Gives what the peers get to know first."""

    @abc.abstractmethod
    def size(self, item: int) -> int:
        """Gives the length of an item in bytes."""

    @abc.abstractmethod
    def blocks(self, item: int, offset: int) -> Iterator[Bytes]:
        """Gives an item's bytes from `offset` on, in blocks of at most wire.BLOCK."""

    @abc.abstractmethod
    def passed(self, item: int, sha256: str) -> None:
        """Is told the sha256 of an item that has passed whole, as it was read."""

    @abc.abstractmethod
    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives an item's sha256; calls `tick` now and then where it has to read for it."""


class ParentWatch:
    """Whether somebody still waits for this process."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._signals: list[int] = []
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda got, _frame: self._signals.append(got))

    def gone(self) -> str | None:
        """Gives why nobody waits any more, or None."""
        if self._signals:
            return f"ended by {signal.Signals(self._signals[0]).name}"
        if os.getppid() != self._parent:
            return "the program that started it is gone"
        # One a call: several streams ask, and one poll object may not be used by two at once.
        poll = select.poll()
        poll.register(1, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            return "the session that started it is gone"
        return None


def parse_address(value: Any) -> Json:
    """Gives a `from`: the giver's address and port, and the device to go out of (or null)."""
    found = validate.keys(value, "from", ("address", "port", "device"), ("address", "port"))
    device = found.get("device")
    return {
        "address": validate.address(found["address"], "from.address"),
        "port": int(validate.number(found["port"], "from.port", 1024, 65535)),
        "device": None if device is None else validate.device(device, "from.device"),
    }


def parse_request(request: Json, more: list[str]) -> Json:
    """Gives an offer's request with its common values checked; `more` are the verb's own keys."""
    keys = ("listen", "peers", "key", "deadline_s")
    body = validate.keys(request, "request", (*keys, *more), ("listen", "peers", "key", *more))
    listen = validate.keys(
        body["listen"], "listen", ("address", "port", "device"), ("address", "port")
    )
    device = listen.get("device")
    peers = validate.array(body["peers"], "peers", MAX_PEERS)
    return {
        "address": validate.address(listen["address"], "listen.address"),
        "port": int(validate.number(listen["port"], "listen.port", 1024, 65535)),
        "device": None if device is None else validate.device(device, "listen.device"),
        "peers": [validate.address(row, f"peers[{n}]") for n, row in enumerate(peers)],
        "key": validate.key(body["key"], "key"),
        "deadline_s": validate.number(body.get("deadline_s", 3600), "deadline_s", 1, 86400),
    }


def serve_server(source: Source, wanted: Json) -> Json:
    """Serve the peers until they are done; gives what each got.

    Raises NodeError: `port_taken`, `no_address`, `deadline`, `no_peer`, `interrupted`.
    """
    alive = ParentWatch()
    door = listener(wanted)
    offer = _Server(source, wanted)
    deadline = time.monotonic() + wanted["deadline_s"]
    try:
        while not offer.done():
            why = alive.gone()
            if why:
                raise NodeError(f"the offer ended: {why}", "interrupted")
            if time.monotonic() > deadline:
                raise NodeError(f"not done in {wanted['deadline_s']:g} s", "deadline")
            if offer.idle_s() > IDLE_S:
                raise NodeError(f"no peer was heard for {IDLE_S:g} s", "no_peer",
                                "look at the peers' own lines")  # fmt: skip
            ready = select.select([door.fileno(), offer.bell], [], [], 0.2)[0]
            if offer.bell in ready:
                os.read(offer.bell, 64)
            if door.fileno() in ready:
                offer.take(*door.accept())
    finally:
        door.close()
    return offer.answer()


def listener(wanted: Json) -> socket.socket:
    """Gives a socket that listens at `address`, `port`, `device`. Raises NodeError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    where = f"{wanted['address']}:{wanted['port']}"
    try:
        # The port of a transfer that has just ended is still in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bind_device(sock, wanted["device"])
        sock.bind((wanted["address"], wanted["port"]))
        sock.listen(16)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise NodeError(f"{where} is taken", "port_taken",
                            f"sudo ss -ltnp sport = :{wanted['port']}; another one: "
                            "--data port=N") from None  # fmt: skip
        reason = error.strerror or str(error)
        raise NodeError(f"cannot listen on {where}: {reason}", "no_address",
                        f"ip addr show {wanted['device'] or ''}".strip()) from None  # fmt: skip
    return sock


class _Server:
    """The state that the connections of one transfer share."""

    def __init__(self, source: Source, wanted: Json) -> None:
        self._source = source
        self._wanted = wanted
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._busy = 0
        self._peers: dict[str, Json] = {}
        self.strangers = 0
        self._unproven: dict[socket.socket, None] = {}
        # Rung when a peer is done, so that nobody waits for the next look.
        self.bell, self._rope = os.pipe()

    def done(self) -> bool:
        """Gives whether every peer said that it is done."""
        return all(self._peers.get(p, {}).get("done") for p in self._wanted["peers"])

    def idle_s(self) -> float:
        """Gives the seconds since a peer was heard; 0 while one is served."""
        return 0.0 if self._busy else time.monotonic() - self._heard

    def answer(self) -> Json:
        """Gives what came of it."""
        return {"peers": self._peers, "strangers": self.strangers}

    def take(self, sock: socket.socket, where: Any) -> None:
        """Serve a connection in a thread of its own; others than the peers are not greeted."""
        if where[0] not in self._wanted["peers"]:
            self.strangers += 1
            sock.close()
            return
        with self._lock:
            self._unproven[sock] = None
            if len(self._unproven) > MAX_UNPROVEN:
                # its thread waits for a proof, and ends by this
                with contextlib.suppress(OSError):
                    next(iter(self._unproven)).shutdown(socket.SHUT_RDWR)
                del self._unproven[next(iter(self._unproven))]
        threading.Thread(target=self._serve, args=(sock, where[0]), daemon=True).start()

    def _serve(self, sock: socket.socket, address: str) -> None:
        try:
            line = accept_handshake(sock, self._wanted["key"])
        except (WireError, OSError):
            with self._lock:
                self.strangers += 1
                self._unproven.pop(sock, None)
            sock.close()
            return
        with self._lock:
            self._unproven.pop(sock, None)
            self._busy += 1
            peer = self._peers.setdefault(address, {"done": False, "error": None, "wire_bytes": 0})
        over = False
        try:
            over = self._talk(line, peer)
        except WireError:
            pass  # the receiver calls again, or does not; idle_s tells
        finally:
            line.close()
            with self._lock:
                self._busy -= 1
                self._heard = time.monotonic()
                peer["wire_bytes"] += line.wire_bytes
                peer["done"] = peer["done"] or over
            os.write(self._rope, b"!")

    def _talk(self, line: Connection, peer: Json) -> bool:
        """Answers until the peer says that it needs no more; gives whether that was for good."""
        while True:
            asked = line.receive_message()
            try:
                if "bye" in asked:
                    peer["error"] = asked["bye"]
                    return True
                if "wait" in asked:
                    continue
                if "list" in asked:
                    line.send_message(self._source.listing())
                elif "size" in asked:
                    line.send_message({"size": self._source.size(int(asked["size"]))})
                elif "sha256" in asked:
                    line.send_message(self._digest(line, int(asked["sha256"])))
                elif "get" in asked:
                    self._give(line, asked)
                else:
                    raise NodeError("an unknown request", "bad_request")
            except WireError:
                raise
            except Exception as error:  # whatever it is: the peer must not ask for it for ever
                line.send_message({"error": str(error) or type(error).__name__})

    def _give(self, line: Connection, asked: Json) -> None:
        item, offset = int(asked["get"]), int(asked["offset"])
        # The taker hashes it from its first byte: one pass then checks every block and the whole.
        running = RunningDigest() if asked.get("hashes") is True and not offset else None
        if running:
            line.send_message({"checks": "sha256"})
        for block in self._source.blocks(item, offset):
            line.send(block, running)
        if running:
            self._source.passed(item, running.hexdigest())
        line.send_message({"end": True, **self._digest(line, item)})

    def _digest(self, line: Connection, item: int) -> Json:
        """Gives an item's sha256; the peer is told now and then that somebody reads for it."""
        said = [time.monotonic()]

        def tick() -> None:
            if time.monotonic() - said[0] > 5.0:
                said[0] = time.monotonic()
                line.send_message({"wait": True})

        return {"sha256": self._source.sha256(item, tick)}


# rate: how fast the fabric is between two nodes, for a few seconds: RDMA writes, or TCP streams.
#
# Nothing is written anywhere; a few MiB of memory are all that it takes. What is not over after
# its
# seconds is ended, whoever waits for it.

PERFTEST = "ib_write_bw"
# One stream is bound by one core: 34 Gbit/s between two DGX Spark, four of them 93.
STREAMS = 4
# How long the two ends wait for each other.
MEET_S = 15.0
_PAUSE_S = 0.2
_BLOCK = 1 << 20


def look_at_rate(request: Json) -> Json:
    """Gives whether ib_write_bw (package perftest) is installed."""
    validate.keys(request, "request", ())
    return {PERFTEST: which(PERFTEST) is not None}


def _request(request: Json, place: str) -> Json:
    """Gives a request with every value checked; `place` is where the receiver listens."""
    keys = (place, "peer", "key", "seconds", "rdma")
    body = validate.keys(request, "request", keys, (place, "key", "seconds"))
    rdma = body.get("rdma")
    return {
        **parse_address(body[place]),
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


def receive_rate(request: Json) -> Json:
    """Takes what the peer sends; gives `gbit_s`, as it came here (None: RDMA, the sender knows).

    Raises NodeError: `no_address`, `port_taken`, `no_peer`, `no_tool`, `rate`.
    """
    wanted = _request(request, "listen")
    if wanted["rdma"] is not None:
        _perftest(wanted, [])
        return {"gbit_s": None}
    with listener(wanted) as door:
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


def send_rate(request: Json) -> Json:
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
            bind_device(stream, wanted["device"])
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
