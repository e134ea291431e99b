"""Links, RDMA devices and how the peers are reached."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

from node.core import proc
from node.core.errors import CannotRead, Json
from node.core.parallel import each
from node.core.run import TimedOut, run
from node.snapshot import rdma

TIMEOUT_S = 5.0
REACH_S = 2.5
_OVERHEAD = {4: 28, 6: 48}  # IP header + ICMP header, in bytes


def _ip(*words: str) -> Any:
    """Gives the JSON of an `ip` command. Raises CannotRead with its message."""
    try:
        done = run(["ip", "-j", *words], TIMEOUT_S)
    except FileNotFoundError:
        raise CannotRead("ip not found: install iproute2") from None
    if done.rc != 0:
        raise CannotRead(f"ip {' '.join(words)}: {done.last_line()}")
    return json.loads(done.out or "[]")


def bond_slaves_down(text: str) -> tuple[str, ...]:
    """Gives the slaves that /proc/net/bonding/NAME reports as not up."""
    down: list[str] = []
    slave: str | None = None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "Slave Interface":
            slave = value.strip()
        elif key == "MII Status" and slave and value.strip() != "up":
            down.append(slave)
    return tuple(down)


def _speed(name: str) -> int | None:
    """Gives a link's speed in Mbit/s, or None where the driver does not say."""
    text = proc.read_text(f"/sys/class/net/{name}/speed")
    return int(text) if text.isdigit() else None


def links(rows: list[Json]) -> list[Json]:
    """Gives the links of `ip -j -d addr`."""
    found: list[Json] = []
    for row in rows:
        name = str(row["ifname"])
        slaves = sorted(str(other["ifname"]) for other in rows if other.get("master") == name)
        found.append(
            {
                "name": name,
                "kind": (row.get("linkinfo") or {}).get("info_kind"),
                "state": str(row.get("operstate", "UNKNOWN")),
                "carrier": "LOWER_UP" in row.get("flags", []),
                "mtu": int(row["mtu"]),
                "mac": row.get("address"),
                "addresses": [
                    f"{info['local']}/{info['prefixlen']}"
                    for info in row.get("addr_info", [])
                    if "local" in info
                ],
                "speed_mbit": _speed(name),
                "master": row.get("master"),
                "slaves": slaves,
                "bond_slaves_down": list(
                    bond_slaves_down(proc.read_text(f"/proc/net/bonding/{name}"))
                ),
            }
        )
    return found


def _ping(peer: str, device: str, mtu: int) -> tuple[bool | None, str]:
    """Send a full-size unfragmented ping, at most twice; gives the answer and a line about it."""
    version = 6 if ":" in peer else 4
    size = mtu - _OVERHEAD[version]
    argv = ["ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", str(size), "-I", device, peer]
    detail = ""
    for _ in range(2):
        try:
            done = run(argv, 3.0)
        except FileNotFoundError:
            return None, "ping not found"
        except TimedOut as error:
            detail = str(error)
            continue
        if done.rc == 0:
            return True, f"{size} bytes unfragmented through {device}"
        said = [line for line in (done.out + done.err).splitlines() if "essage too long" in line]
        detail = said[0].strip() if said else f"no answer to {size} bytes through {device}"
    return False, detail


def probe(peer: str, device: str | None, mtu: int | None, rows: list[Json]) -> Json:
    """Gives the route to a peer and whether a full-size ping gets there.

    The ping leaves by `device` (else by the route's), with `mtu` bytes (else the device's MTU).
    """
    answer: Json = {
        "address": peer,
        "route_device": None,
        "route_source": None,
        "full_size_ping": None,
    }
    try:
        routes = _ip("route", "get", peer)
    except CannotRead as error:
        return {**answer, "detail": str(error)}
    if not routes or not routes[0].get("dev"):
        return {**answer, "detail": f"no route to {peer}"}
    answer.update(route_device=routes[0]["dev"], route_source=routes[0].get("prefsrc"))
    out = device or str(routes[0]["dev"])
    known = {str(row["ifname"]): int(row["mtu"]) for row in rows}
    if out not in known:
        return {**answer, "detail": f"no device {out}"}
    answer["full_size_ping"], detail = _ping(peer, out, mtu or known[out])
    return {**answer, "detail": detail}


def reach(ask: Json) -> Json:
    """Gives what a TCP connection to a peer's port meets; nothing is sent over one that opens.

    A packet that a firewall drops has no answer, not even the second SYN that follows after 1 s.
    """
    state, detail = "open", "somebody listens there"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(REACH_S)
        try:
            if ask["device"]:
                option = getattr(socket, "SO_BINDTODEVICE", 25)
                sock.setsockopt(socket.SOL_SOCKET, option, ask["device"].encode() + b"\0")
            sock.connect((ask["address"], ask["port"]))
        except ConnectionRefusedError:
            state, detail = "refused", "nobody listens there"
        except TimeoutError:
            state, detail = "filtered", f"no answer in {REACH_S:g} s"
        except OSError as error:
            state, detail = "no-way", error.strerror or str(error)
    return {**ask, "state": state, "detail": detail}


def read(device: str | None, mtu: int | None, peers: list[str], asked: Sequence[Json] = ()) -> Json:
    """Gives links, RDMA ports and one probe for each peer and each port, all at once."""
    rows = _ip("-d", "addr")
    reached = each(reach, list(asked), 8)
    probes = each(lambda peer: probe(peer, device, mtu, rows), peers, 8)
    return {"links": links(rows), "rdma": rdma.read(), "peers": probes, "reach": reached}
