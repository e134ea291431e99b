"""Links, the peers on them, ports and connections.

Sections of the snapshot (schema/observed/snapshot.py, which says what its units are).
"""

from __future__ import annotations

from typing import Literal

from schema.core.base import Frozen


class Link(Frozen):
    """A network link. `slaves` are the members of a bond, with their own MTU in `links`."""

    name: str
    kind: str | None
    state: str
    carrier: bool
    mtu: int
    mac: str | None
    addresses: tuple[str, ...]
    speed_mbit: int | None
    master: str | None
    slaves: tuple[str, ...]
    bond_slaves_down: tuple[str, ...]


class PeerProbe(Frozen):
    """How this host reaches one peer's fabric address.

    `full_size_ping` is None when it was not tried (no route, no ping program).
    """

    address: str
    route_device: str | None
    route_source: str | None
    full_size_ping: bool | None
    detail: str


class ReachAsk(Frozen):
    """A TCP port of a peer; `device` is the only one that the connection may leave by."""

    address: str
    port: int
    device: str | None = None


class Reach(ReachAsk):
    """What a connection to a peer's port met.

    `open`: somebody listens; `refused`: the peer's kernel says that nobody does, so the way is
    open (or a firewall answers in its name); `filtered`: no answer; `no-way`: no route, no device.
    """

    state: Literal["open", "refused", "filtered", "no-way"]
    detail: str


class Network(Frozen):
    """Links, RDMA devices and the probes to the peers that the request named."""

    links: tuple[Link, ...]
    rdma_devices: tuple[str, ...]
    peers: tuple[PeerProbe, ...]
    reach: tuple[Reach, ...] = ()


class Port(Frozen):
    """A listening TCP port and who holds it (pid None: not visible), a process by its start, too:
    a pid is given anew.
    """

    address: str
    port: int
    pid: int | None
    process: str | None
    unit: str | None
    container_id: str | None
    start_ticks: int | None = None


class Connection(Frozen):
    """An ESTABLISHED TCP connection with one of the addresses that the request named."""

    local_address: str
    local_port: int
    peer_address: str
    peer_port: int
    pid: int | None
    process: str | None
    container_id: str | None
