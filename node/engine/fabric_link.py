"""Whether our end of the fabric is there, and whether a peer's host answers on it."""

from __future__ import annotations

import errno
import json
import socket

from node.core.run import TimedOut, run

TIMEOUT_S = 5.0
# discard: nothing listens there, so that a refusal proves the host without talking to a program
KNOCK_PORT = 9


def missing(device: str, address: str) -> str | None:
    """Gives what is not there yet of our end of the fabric, or None when all of it is."""
    try:
        done = run(["ip", "-j", "addr", "show", "dev", device], TIMEOUT_S)
    except FileNotFoundError:
        return "ip not found: install iproute2"
    except TimedOut as error:
        return str(error)
    if done.rc != 0:
        return f"no device {device}"
    try:
        rows = [row for row in json.loads(done.out or "[]") if row.get("ifname") == device]
        found = [str(info.get("local")) for info in rows[0].get("addr_info", [])]
        flags = rows[0].get("flags", [])
    except (ValueError, IndexError, AttributeError):
        return f"ip says nothing about {device}"
    if address not in found:
        return f"{device} has no {address} (it has {', '.join(found) or 'no address'})"
    return None if "LOWER_UP" in flags else f"{device} has no carrier"


def mtu(device: str) -> int | None:
    """Gives a device's MTU in bytes, or None when there is none."""
    try:
        with open(f"/sys/class/net/{device}/mtu", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def peer_answers(peer: str, source: str, timeout_s: float = 2.0) -> bool:
    """Gives True when the peer's host answers on the fabric: to a connect, else to a ping.

    A refused connect is an answer; a firewall that drops it leaves the ping.
    """
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as knock:
        knock.settimeout(timeout_s)
        try:
            knock.bind((source, 0))
            knock.connect((peer, KNOCK_PORT))
            return True
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return True
    try:
        return run(["ping", "-n", "-c", "1", "-W", "1", "-I", source, peer], 3.0).rc == 0
    except (FileNotFoundError, TimedOut):
        return False
