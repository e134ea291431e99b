"""RDMA devices as the kernel shows them: device, port, netdev, state, rate and GID table.

Format: Documentation/ABI/stable/sysfs-class-infiniband. An empty GID has the type that its file
refuses to tell (EINVAL), or reads as zeros; it is left out.
"""

from __future__ import annotations

import os

from node.core import proc
from node.core.errors import Json

ROOT = "/sys/class/infiniband"
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def _names(folder: str) -> list[str]:
    """Gives a folder's names, numbers in their order; none where there is no such folder."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(names, key=lambda name: (len(name), name) if name.isdigit() else (0, name))


def _gids(port: str) -> list[Json]:
    """Gives the filled rows of a port's GID table."""
    rows: list[Json] = []
    for index in _names(f"{port}/gids"):
        gid = proc.read_text(f"{port}/gids/{index}")
        if gid and gid != _EMPTY:
            kind = proc.read_text(f"{port}/gid_attrs/types/{index}")
            netdev = proc.read_text(f"{port}/gid_attrs/ndevs/{index}")
            rows.append(
                {"index": int(index), "gid": gid, "kind": kind or None, "netdev": netdev or None}
            )
    return rows


def _value(text: str) -> str | None:
    """Gives the word of `4: ACTIVE`."""
    return text.partition(":")[2].strip() or None


def _rate(text: str) -> float | None:
    """Gives the Gbit/s of `200 Gb/sec (4X HDR)`."""
    word = text.partition(" ")[0]
    return float(word) if word.replace(".", "", 1).isdigit() else None


def read(root: str = ROOT) -> list[Json]:
    """Gives every port of every RDMA device; none on a host without them.

    `netdev` is the network device that carries the port, None where the kernel names none.
    """
    found: list[Json] = []
    for device in _names(root):
        netdevs = _names(f"{root}/{device}/device/net")
        card = {
            "board": proc.read_text(f"{root}/{device}/board_id") or None,
            "firmware": proc.read_text(f"{root}/{device}/fw_ver") or None,
        }
        for number in _names(f"{root}/{device}/ports"):
            port = f"{root}/{device}/ports/{number}"
            gids = _gids(port)
            named = next((row["netdev"] for row in gids if row["netdev"]), None)
            found.append(
                {
                    **card,
                    "device": device,
                    "port": int(number),
                    "netdev": netdevs[0] if len(netdevs) == 1 else named,
                    "state": _value(proc.read_text(f"{port}/state")),
                    "link": _value(proc.read_text(f"{port}/phys_state")),
                    "rate_gbit": _rate(proc.read_text(f"{port}/rate")),
                    "link_layer": proc.read_text(f"{port}/link_layer") or None,
                    "gids": gids,
                }
            )
    return found
