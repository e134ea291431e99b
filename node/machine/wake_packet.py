"""wake: send a Wake-on-LAN magic packet from this host to a sleeping neighbour."""

from __future__ import annotations

import re
import socket
from typing import Any

from node.core import validate
from node.core.errors import Json, NodeError, io_reason

_MAC = re.compile(r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")


def mac(value: Any, where: str) -> str:
    """Gives a MAC address of one machine: no broadcast, no multicast, not all zero."""
    text = validate.text(value, where, 17).lower()
    if not _MAC.match(text) or int(text[:2], 16) & 1 or text == "00:00:00:00:00:00":
        raise validate.bad(f"{where}: {text[:40]!r} is not one machine's MAC address")
    return text


def packet(address: str) -> bytes:
    """Gives the magic packet: six bytes FF, then the MAC sixteen times; 102 bytes."""
    return b"\xff" * 6 + bytes.fromhex(address.replace(":", "")) * 16


def wake(request: Json) -> Json:
    """Send the packet to a broadcast address; gives where it went. Writes nothing."""
    body = validate.keys(request, "request", ("mac", "address", "port"), ("mac", "address"))
    told = packet(mac(body["mac"], "mac"))
    address = validate.address(body["address"], "address")
    port = int(validate.number(body.get("port", 9), "port", 1, 65535))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sent = sender.sendto(told, (address, port))
            sender.connect((address, port))
            source = sender.getsockname()[0]
    except OSError as error:
        raise NodeError(f"no packet to {address}: {io_reason(error)}", "not_sent",
                        f"ip route get {address}") from None  # fmt: skip
    return {"sent": sent, "to": f"{address}:{port}", "source": source}
