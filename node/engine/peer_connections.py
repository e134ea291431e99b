"""The connections that hold a rig of several nodes together, read from /proc/net/tcp.

While the engine lives each worker keeps a connection to the master port on the head's fabric
address; it is gone when one rank dies [ran]. A connection is told from its successor by both
ports, so a peer that died and came back is not mistaken for one that stayed.
"""

from __future__ import annotations

from typing import NamedTuple

from node.core import proc
from node.engine.config import Engine
from node.snapshot.ports import address

# include/net/tcp_states.h; CLOSE_WAIT: the other end is gone and ours has not noticed
_ESTABLISHED, _CLOSE_WAIT = "01", "08"
Connection = tuple[str, int, str, int]


class Joined(NamedTuple):
    """By peer: the connections that stand, and whether one is left whose other end has gone."""

    held: dict[str, set[str]]
    half_open: set[str]


def _end(text: str) -> tuple[str, int]:
    """Gives (address, port) of a column; IPv4 in IPv6 as plain IPv4."""
    host, _, port = text.partition(":")
    return address(host).replace("::ffff:", "", 1), int(port, 16)


def connections(text: str, state: str = _ESTABLISHED) -> list[Connection]:
    """Gives (local address, port, remote address, port) of the rows of /proc/net/tcp{,6}."""
    found: list[Connection] = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == state:
            found.append((*_end(fields[1]), *_end(fields[2])))
    return found


def by_peer(engine: Engine, rows: list[Connection]) -> dict[str, set[str]]:
    """Gives, for each peer that we must be joined with, its connections' names.

    The head is joined with every worker; a worker with the head alone.
    """
    if engine.master is None or engine.fabric is None:
        return {}
    master, ours = tuple(engine.master), engine.fabric.address
    if engine.role == "head":
        found: dict[str, set[str]] = {peer: set() for peer in engine.peers}
        for row in rows:
            if row[:2] == master and row[2] in found:
                found[row[2]].add(f"{row[2]}:{row[3]}")
        return found
    held = {f"{row[0]}:{row[1]}" for row in rows if row[2:] == master and row[0] == ours}
    return {engine.master.address: held}


def read(engine: Engine) -> Joined:
    """Gives how this host is joined with its peers now.

    A worker whose head died keeps the dead connection for as long as it lives [ran]: that tells
    of one that nobody has seen while it stood.
    """
    tables = [proc.read_text(table) for table in ("/proc/net/tcp", "/proc/net/tcp6")]
    held = by_peer(engine, [row for text in tables for row in connections(text)])
    left = by_peer(engine, [row for text in tables for row in connections(text, _CLOSE_WAIT)])
    return Joined(held, {peer for peer, names in left.items() if names})
