"""The magic packet: its bytes, as the package that operators use makes them, and bad input."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
import wakeonlan

from node.core.errors import NodeError
from node.machine import wake_packet
from tests.unit.node.support.host import Host

MAC = "04:7c:16:aa:bb:cc"


def test_102_bytes_as_wakeonlan_makes_them() -> None:
    told = wake_packet.packet(MAC)
    assert len(told) == 102 and told[:6] == b"\xff" * 6
    assert told[6:] == bytes.fromhex("047c16aabbcc") * 16
    assert told == wakeonlan.create_magic_packet(MAC)


@pytest.mark.parametrize("change", [
    *({"mac": mac} for mac in (
        "04:7c:16:aa:bb", "04-7c-16-aa-bb-cc", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00",
        "01:00:5e:00:00:01", "04:7c:16:aa:bb:cc\n", None)),
    {"address": "255.255.255.256"}, {"address": "host.example"}, {"port": 0}, {"port": "9"},
])  # fmt: skip
def test_bad_input_sends_nothing(host: Host, change: dict[str, Any]) -> None:
    answer = host.call("wake", {"mac": MAC, "address": "127.255.255.255", **change})
    assert answer["code"] == "bad_request", answer


def test_where_no_way_leads_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    class Nowhere(socket.socket):
        sendto = refuse

    monkeypatch.setattr(wake_packet.socket, "socket", Nowhere)
    with pytest.raises(NodeError, match=r"no packet to 10\.9\.9\.255: Network is unreachable"):
        wake_packet.wake({"mac": MAC, "address": "10.9.9.255"})
