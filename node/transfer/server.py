"""The giving end of a transfer: listens for this one transfer, on one address, and is gone after.

It ends when every peer has said that it is done, and also: at its deadline, when no peer was heard
for IDLE_S, at a signal, and when whoever started it is gone (the parent, or the reader of stdout,
which is the ssh session). Its threads are daemons: nothing listens longer than the process lives.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from node.core import validate
from node.core.errors import Json, NodeError
from node.transfer import protocol

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
    def blocks(self, item: int, offset: int) -> Iterator[protocol.Bytes]:
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


def serve(source: Source, wanted: Json) -> Json:
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
        protocol.bind_device(sock, wanted["device"])
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
            line = protocol.accept_handshake(sock, self._wanted["key"])
        except (protocol.WireError, OSError):
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
        except protocol.WireError:
            pass  # the receiver calls again, or does not; idle_s tells
        finally:
            line.close()
            with self._lock:
                self._busy -= 1
                self._heard = time.monotonic()
                peer["wire_bytes"] += line.wire_bytes
                peer["done"] = peer["done"] or over
            os.write(self._rope, b"!")

    def _talk(self, line: protocol.Connection, peer: Json) -> bool:
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
            except protocol.WireError:
                raise
            except Exception as error:  # whatever it is: the peer must not ask for it for ever
                line.send_message({"error": str(error) or type(error).__name__})

    def _give(self, line: protocol.Connection, asked: Json) -> None:
        item, offset = int(asked["get"]), int(asked["offset"])
        # The taker hashes it from its first byte: one pass then checks every block and the whole.
        running = protocol.RunningDigest() if asked.get("hashes") is True and not offset else None
        if running:
            line.send_message({"checks": "sha256"})
        for block in self._source.blocks(item, offset):
            line.send(block, running)
        if running:
            self._source.passed(item, running.hexdigest())
        line.send_message({"end": True, **self._digest(line, item)})

    def _digest(self, line: protocol.Connection, item: int) -> Json:
        """Gives an item's sha256; the peer is told now and then that somebody reads for it."""
        said = [time.monotonic()]

        def tick() -> None:
            if time.monotonic() - said[0] > 5.0:
                said[0] = time.monotonic()
                line.send_message({"wait": True})

        return {"sha256": self._source.sha256(item, tick)}
