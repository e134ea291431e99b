"""What the hosts of a rig say to each other: one UDP datagram each, with a code made with the key.

A question has a nonce that the answer repeats, so an old answer that comes late, twice or from a
stranger says nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

from node.core.errors import Json
from node.lease.agreement import PHASES, View

MOST = 2048
ANSWER_S = 0.5
# ip(7): bind an address that comes up later, such as the fabric's at boot
IP_FREEBIND = 15


def _pack(key: bytes, body: Json) -> bytes:
    raw = json.dumps(body, sort_keys=True).encode("utf-8")
    return hmac.new(key, raw, hashlib.sha256).hexdigest().encode("ascii") + raw


def _unpack(key: bytes, raw: bytes) -> Json | None:
    """Gives the object of a datagram; None for one that was not made with the key."""
    code, text = raw[:64], raw[64:]
    made = hmac.new(key, text, hashlib.sha256).hexdigest().encode("ascii")
    if not hmac.compare_digest(made, code):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def listening(address: str, port: int) -> socket.socket:
    """Gives a socket that takes questions at an address, which need not be up yet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made


def answer(sock: socket.socket, key: bytes, change: str, node: str, view: View) -> None:
    """Takes one datagram, and answers it when it asks this host about this change."""
    raw, sender = sock.recvfrom(MOST)
    asked = _unpack(key, raw)
    if asked is None or asked.get("ask") != change or asked.get("of") != node:
        return
    said = {"tell": change, "nonce": asked.get("nonce"), "from": node, **view._asdict()}
    sock.sendto(_pack(key, said), sender)


def ask(address: str, port: int, key: bytes, change: str, node: str) -> View | None:
    """Gives what the host `node` says at an address; None: nothing within ANSWER_S seconds.

    Raises ConnectionRefusedError where it says that nobody listens, OSError where no way leads.
    """
    nonce = secrets.token_hex(8)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(ANSWER_S)
        sock.connect((address, port))
        sock.send(_pack(key, {"ask": change, "of": node, "nonce": nonce}))
        # late answers to earlier questions go to closed ports; one that is no answer ends it
        try:
            told = _unpack(key, sock.recv(MOST))
        except TimeoutError:
            return None
    if told is None or (told.get("tell"), told.get("nonce"), told.get("from")) != (
        change,
        nonce,
        node,
    ):
        return None
    return _view(told)


def _view(told: dict[str, Any]) -> View | None:
    if told.get("phase") not in PHASES:
        return None
    status, hindrance = told.get("status"), str(told.get("hindrance") or "")
    known = status if isinstance(status, str) else None
    head, engine = told.get("head") is True, told.get("engine") is True
    return View(told["phase"], known, head, hindrance, engine)
