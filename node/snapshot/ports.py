"""The listening TCP ports and who holds them."""

from __future__ import annotations

import re
import socket
import sys
from typing import Dict, List, Tuple

from node import proc
from node.errors import Json

_LISTEN = "0A"  # TCP_LISTEN of include/net/tcp_states.h
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")


def address(hexadecimal: str) -> str:
    """Gives the address of a /proc/net/tcp{,6} column: 32-bit words in host byte order."""
    raw = bytes.fromhex(hexadecimal)
    if sys.byteorder == "little":
        raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def listening(text: str) -> List[Tuple[str, int, int]]:
    """Gives (address, port, socket inode) of the rows of /proc/net/tcp{,6} that listen."""
    rows: List[Tuple[str, int, int]] = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            host, _, port = fields[1].partition(":")
            rows.append((address(host), int(port, 16), int(fields[9])))
    return rows


def read(open_files: List[proc.Fd]) -> List[Json]:
    """Gives the listening ports, by port; where several processes share one, the lowest pid."""
    owners: Dict[int, int] = {}
    for pid, _, target in open_files:
        match = _SOCKET.match(target)
        if match:
            inode = int(match.group(1))
            owners[inode] = min(pid, owners.get(inode, pid))
    found: List[Json] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for host, port, inode in listening(proc.read_text(table)):
            owner = owners.get(inode)
            cgroup = proc.cgroup(owner) if owner else ""
            stat = proc.stat(owner) if owner else None
            found.append(
                {
                    "address": host,
                    "port": port,
                    "pid": owner,
                    "process": stat.comm if stat else None,
                    "unit": proc.unit_of(cgroup),
                    "container_id": proc.container_of(cgroup),
                }
            )
    return sorted(found, key=lambda row: (row["port"], row["address"], row["pid"] or 0))
