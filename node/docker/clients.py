"""The docker clients that run under a unit: they hold what they start in a container.

A container's process shows its container alone; that a unit runs it by `docker exec`, and starts it
again when the container is stopped, shows in the client.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from node.core import proc

_VERBS = frozenset(("exec", "run", "start", "attach", "restart"))


class Client(NamedTuple):
    """A docker client: the unit of its cgroup and the words of its command line."""

    unit: str
    words: frozenset[str]


def read() -> list[Client]:
    """Gives the clients that start or hold something, of those that a unit runs."""
    found: list[Client] = []
    for pid in proc.pids():
        argv = proc.argv(pid)
        if not argv or os.path.basename(argv[0]) != "docker" or not _VERBS & set(argv[1:]):
            continue
        unit = proc.unit_of(proc.cgroup(pid))
        if unit is not None:
            found.append(Client(unit, frozenset(argv[1:])))
    return found


def units_of(clients: list[Client], name: str, identifier: str) -> list[str]:
    """Gives the units whose clients name a container, by its name or the begin of its id."""
    return sorted({
        client.unit for client in clients
        if name in client.words
        or any(len(word) >= 12 and identifier.startswith(word) for word in client.words)
    })  # fmt: skip
