"""Whose process holds a port: our unit's or our container's, or whoever else keeps it alive.

A completion proves an engine, and only the holder of the port tells whose: an engine of a former
setup answered in place of ours, and the change was called COMMITTED.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from node.rules.patterns import LOGIN_UNIT


class Held(Protocol):
    """A process, or the holder of a port: the unit or the container of its cgroup."""

    @property
    def unit(self) -> str | None:
        """The outermost service of its cgroup, None in a container."""

    @property
    def container_id(self) -> str | None:
        """The container of its cgroup."""


class Listener(Held, Protocol):
    """A listening port with its holder."""

    @property
    def address(self) -> str:
        """The address that it is bound to."""

    @property
    def port(self) -> int:
        """Its number."""


class Box(Protocol):
    """A container, and the units in which a docker client names it (`docker exec`)."""

    @property
    def id(self) -> str:
        """Its whole id."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def restart_policy(self) -> str:
        """When docker starts it again."""

    @property
    def held_by(self) -> Sequence[str]:
        """The units whose docker clients name it now."""


class Service(Protocol):
    """A systemd unit, as far as it tells what it starts and what starts it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def exec_start(self) -> Sequence[str]:
        """The words of its command."""

    @property
    def exec_start_pre(self) -> Sequence[str]:
        """The commands before it, a line each."""

    @property
    def restart(self) -> str:
        """Its Restart=."""

    @property
    def enabled(self) -> str:
        """Its UnitFileState."""

    @property
    def triggered_by(self) -> Sequence[str]:
        """The timers, sockets and paths that start it."""


B = TypeVar("B", bound=Box)
L = TypeVar("L", bound=Listener)


class End(NamedTuple):
    """How a holder is ended for good: the command, and what would start it again ("": nothing)."""

    command: str
    again: str

    @property
    def text(self) -> str:
        """Both in one line."""
        return f"{self.command} ({self.again})" if self.again else self.command


def same_container(one: str, other: str) -> bool:
    """True for ids of one container; docker and cgroups give them whole or cut to 12 digits."""
    return min(len(one), len(other)) >= 12 and (one.startswith(other) or other.startswith(one))


def is_ours(held: Held, unit: str, container_id: str | None) -> bool:
    """True when it is of our unit, or of the container that our unit runs (None: there is none)."""
    if container_id is not None and held.container_id is not None:
        return same_container(held.container_id, container_id)
    return held.unit == unit


def at(listeners: Iterable[L], port: int, host: str) -> list[L]:
    """Those that a connection to `host` and `port` may reach; every one of them, since several
    processes can share a port (SO_REUSEPORT, which vLLM sets). `host` a name: all of the port.
    """
    return [row for row in listeners if row.port == port and _reaches(row.address, host)]


def _reaches(address: str, host: str) -> bool:
    try:
        bound, asked = ipaddress.ip_address(address), ipaddress.ip_address(host)
    except ValueError:
        return True
    return bound.is_unspecified or bound == asked


def box_of(held: Held, boxes: Iterable[B]) -> B | None:
    """The container of a holder; None where it is in none, or in one that docker does not list."""
    wanted = held.container_id
    return next((b for b in boxes if wanted and same_container(b.id, wanted)), None)


def keepers(held: Held, boxes: Iterable[Box], units: Iterable[Service]) -> list[str]:
    """The units that keep a holder alive: its own, or those that start something in its container.

    `docker stop` ends nothing for long where a unit runs the engine by `docker exec`.
    """
    if held.container_id is None:
        return [] if held.unit is None or LOGIN_UNIT.match(held.unit) else [held.unit]
    box = box_of(held, boxes)
    if box is None:
        return []
    name = box.name.lstrip("/")
    naming = [unit.name for unit in units if name in _words(unit)]
    return list(dict.fromkeys([*box.held_by, *naming]))


def _words(unit: Service) -> set[str]:
    lines = (" ".join(unit.exec_start), *unit.exec_start_pre)
    return {word.strip("'\";&|") for line in lines for word in line.split()}


def end(held: Held, boxes: Sequence[Box], units: Sequence[Service]) -> End | None:
    """How to end a holder through whoever keeps it alive; None: nobody does."""
    names, box = keepers(held, boxes, units), box_of(held, boxes)
    commands = [f"sudo systemctl stop {shlex.join(names)}"] if names else []
    again = [line for unit in units if unit.name in names for line in _again(unit)]
    if held.container_id is not None:
        name = shlex.quote(box.name.lstrip("/")) if box else held.container_id[:12]
        # The end of a `docker exec` does not end what it started inside the container.
        commands.append(f"sudo docker stop {name}")
        if box is not None and box.restart_policy not in ("no", ""):
            again.append(
                f"docker's restart policy {shlex.quote(box.restart_policy)} starts it again: "
                f"sudo docker update --restart=no {name}"
            )
    return End(" && ".join(commands), "; ".join(again)) if commands else None


def _again(unit: Service) -> list[str]:
    found = []
    if unit.restart not in ("no", ""):
        policy = f"Restart={shlex.quote(unit.restart)} of {shlex.quote(unit.name)}"
        found.append(f"{policy} starts it again, if it is not stopped")
    found += [
        f"{shlex.quote(name)} starts it again: sudo systemctl stop {shlex.quote(name)}"
        for name in unit.triggered_by
    ]
    if unit.enabled in ("enabled", "enabled-runtime"):
        found.append(f"so does the next boot: sudo systemctl disable {shlex.quote(unit.name)}")
    return found
