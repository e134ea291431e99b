"""The lease of the open change on this host: root's file, written by the run, gone at its end."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from node.core import validate
from node.core.errors import Json
from node.files import atomic, state_dir, state_file
from node.rules.heartbeat import LEAST_LEASE_S

_KEYS = ("seconds", "key", "node", "head", "port", "addresses", "peers")


class Lease(NamedTuple):
    """A change's lease in seconds, the key of its rig's keepers, this host's name and addresses,
    whether it is the head, and the addresses of each peer by name.
    """

    change: str
    seconds: float
    key: bytes
    node: str
    head: bool
    port: int
    addresses: tuple[str, ...]
    peers: dict[str, tuple[str, ...]]


def path() -> str:
    """Gives the file's path."""
    return os.path.join(state_dir.root(), "lease.json")


def parse(value: Any) -> Lease:
    """Gives the lease of a request's or the file's object. Raises NodeError (`bad_request`)."""
    row = validate.keys(value, "lease", ("change", *_KEYS), ("change", *_KEYS))
    peers = row["peers"]
    if not isinstance(peers, dict) or len(peers) > 63:
        raise validate.bad("lease.peers is not an object of at most 63 peers")
    return Lease(
        validate.change_id(row["change"], "lease.change"),
        validate.number(row["seconds"], "lease.seconds", LEAST_LEASE_S, 86400),
        bytes.fromhex(validate.key(row["key"], "lease.key")),
        validate.text(row["node"], "lease.node", 200),
        validate.boolean(row["head"], "lease.head"),
        int(validate.number(row["port"], "lease.port", 1024, 65535)),
        _addresses(row["addresses"], "lease.addresses"),
        {validate.text(name, "lease.peers", 200): _addresses(rows, f"lease.peers.{name}")
         for name, rows in peers.items()},
    )  # fmt: skip


def _addresses(value: Any, where: str) -> tuple[str, ...]:
    rows = validate.array(value, where, 8)
    if not rows:
        raise validate.bad(f"{where} is empty")
    return tuple(validate.address(row, f"{where}[{n}]") for n, row in enumerate(rows))


def load() -> Lease | None:
    """Gives this host's lease; None: there is none. Raises NodeError (`lease_file`)."""
    if not os.path.exists(path()):
        return None
    return state_file.read_settings(path(), parse, "lease_file", "rignode status")


def save(body: Json) -> None:
    """Write the lease of a checked request; it is on the disk on return, for root alone."""
    state_file.save(path(), body)


def remove() -> None:
    """Take the file away, where there is one."""
    with atomic.Folder(path()) as folder:
        if os.path.lexists(path()):
            folder.unlink(folder.name)
