"""What two nodes say to each other over a plain TCP stream: who they are, requests, blocks of data.

A one-time key proves both ends (HMAC-SHA256 over two nonces) and every frame: its place in the
stream, its kind and length, a message whole. A block carries a check word, which finds the byte
that the wire flipped where it flipped: the first four bytes of the sha256 of all of the item so
far, or, where an item is not hashed from its beginning, a CRC-32. What a whole item is worth is its
sha256, which comes in an answer that the key protects. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import mmap
import secrets
import socket
import struct
import zlib
from typing import Any

from node.core.errors import Json
from node.transfer.block import BLOCK

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
        # comes (node/transfer/direct_writer.py).
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
