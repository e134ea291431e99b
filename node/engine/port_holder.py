"""Who holds the port that this host's engine answers on: its own unit or container, or another."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from node.core import proc
from node.core.errors import CannotRead
from node.docker import containers
from node.engine.config import Engine
from node.rules import ownership
from node.snapshot import ports


class Holder(NamedTuple):
    """A listener and the process that holds it (pid None: not visible)."""

    address: str
    port: int
    pid: int | None
    process: str | None
    unit: str | None
    container_id: str | None
    start_ticks: int | None


class Seen(NamedTuple):
    """Who holds the port: ours are told from others by `foreign`, in words (None: all are ours)."""

    holders: tuple[Holder, ...]
    foreign: str | None


def listeners(url: str) -> list[Holder]:
    """Gives what a connection to a URL may reach on this host."""
    where = urlsplit(url)
    number = where.port or (443 if where.scheme == "https" else 80)
    rows = (Holder(**row) for row in ports.read(proc.open_files()))
    return ownership.at(rows, number, where.hostname or "")


def look(engine: Engine) -> Seen:
    """Gives who would answer now. Raises CannotRead when that cannot be told."""
    if engine.endpoint is None:
        raise CannotRead(f"{engine.node} has no endpoint")
    held = listeners(engine.endpoint.url)
    if not held:
        raise CannotRead(f"nobody listens for {engine.endpoint.url} here")
    if any(row.pid is None for row in held):
        raise CannotRead(f"who holds port {held[0].port} is not visible")
    own = containers.identifier(engine.container) if engine.container else None
    others = [row for row in held if not ownership.is_ours(row, engine.unit, own)]
    return Seen(tuple(held), _words(others[0], engine) if others else None)


def _words(row: Holder, engine: Engine) -> str:
    """Gives who it is in place of our engine."""
    by = f"unit {row.unit}" if row.unit else "no unit"
    by = f"container {row.container_id[:12]}" if row.container_id else by
    return f"port {row.port} is held by pid {row.pid} ({row.process}, {by}), not by {engine.unit}"
