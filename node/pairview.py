"""The connections that hold a rig of several nodes together, read from /proc/net/tcp.

While the engine lives each worker keeps a connection to the master port on the head's fabric
address; it is gone when one rank dies [ran]. A connection is told from its successor by both
ports, so a peer that died and came back is not mistaken for one that stayed.
"""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

from node import proc
from node.engineconf import Engine
from node.snapshot.ports import address

_ESTABLISHED = "01"  # include/net/tcp_states.h
Connection = Tuple[str, int, str, int]


def _end(text: str) -> Tuple[str, int]:
    """Gives (address, port) of a column; IPv4 in IPv6 as plain IPv4."""
    host, _, port = text.partition(":")
    return address(host).replace("::ffff:", "", 1), int(port, 16)


def established(text: str) -> List[Connection]:
    """Gives (local address, port, remote address, port) of the rows of /proc/net/tcp{,6}."""
    found: List[Connection] = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _ESTABLISHED:
            found.append((*_end(fields[1]), *_end(fields[2])))
    return found


def by_peer(engine: Engine, rows: List[Connection]) -> Dict[str, Set[str]]:
    """Gives, for each peer that we must be joined with, its connections' names.

    The head is joined with every worker; a worker with the head alone.
    """
    if engine.master is None or engine.fabric is None:
        return {}
    master, ours = tuple(engine.master), engine.fabric.address
    if engine.role == "head":
        found: Dict[str, Set[str]] = {peer: set() for peer in engine.peers}
        for row in rows:
            if row[:2] == master and row[2] in found:
                found[row[2]].add(f"{row[2]}:{row[3]}")
        return found
    held = {f"{row[0]}:{row[1]}" for row in rows if row[2:] == master and row[0] == ours}
    return {engine.master.address: held}


def read(engine: Engine) -> Dict[str, Set[str]]:
    """Gives `by_peer` of this host now."""
    rows: List[Connection] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows += established(proc.read_text(table))
    return by_peer(engine, rows)
