"""Which files of this host name which IPv4 addresses: what sets them at the next boot."""

from __future__ import annotations

import os
import re

from node.core import proc

# netplan, NetworkManager, networkd, ifupdown; then what people write by hand
FOLDERS = (
    "/etc/netplan", "/etc/NetworkManager", "/etc/systemd", "/etc/network",
    "/etc/networkd-dispatcher", "/etc/cloud", "/etc/cron.d", "/etc/rc.local", "/etc/init.d",
    "/etc/sysconfig", "/lib/netplan", "/usr/local/bin", "/usr/local/sbin",
    # leases: who asked for an address once asks for it again
    "/run/systemd/netif/leases", "/var/lib/NetworkManager", "/var/lib/dhcp",
)  # fmt: skip
MAX_BYTES = 64 * 1024
_ADDRESS = re.compile(rb"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")


def read(folders: tuple[str, ...] = FOLDERS) -> dict[str, list[str]]:
    """Gives, by address, the files that name it."""
    found: dict[str, list[str]] = {}
    for top in folders:
        walk = os.walk(top) if os.path.isdir(top) else [("", [], [top])]
        for folder, _, names in walk:
            for path in (os.path.join(folder, name) for name in names):
                if os.path.isfile(path) and os.path.getsize(path) <= MAX_BYTES:
                    for address in _ADDRESS.findall(proc.read_bytes(path) or b""):
                        paths = found.setdefault(address.decode(), [])
                        paths += [path] if path not in paths else []
    return found
