"""Links, the peers on them, ports and connections.

Sections of the snapshot (schema/observed/snapshot.py, which says what its units are).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
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


class Gid(Frozen):
    """A filled row of a port's GID table. `kind` is `RoCE v2` or `IB/RoCE v1`."""

    index: int
    gid: str
    kind: str | None
    netdev: str | None

    @property
    def ipv4(self) -> IPv4Address | None:
        """The address of a RoCE v2 GID that stands for one (::ffff:10.0.0.1), else None."""
        mapped = IPv6Address(self.gid).ipv4_mapped
        return mapped if self.kind == "RoCE v2" else None


class RdmaPort(Frozen):
    """A port of an RDMA device (HCA), as /sys/class/infiniband shows it.

    `state` is ACTIVE, DOWN …; `link` is the cable's: LinkUp, Polling, Disabled …; the rate is in
    Gbit/s. `board` is the card's model as its maker numbers it.
    """

    device: str
    port: int
    netdev: str | None
    state: str | None
    link: str | None
    rate_gbit: float | None
    link_layer: str | None
    gids: tuple[Gid, ...]
    board: str | None = None
    firmware: str | None = None

    @property
    def addresses(self) -> tuple[IPv4Address, ...]:
        """The addresses that RoCE v2 can use here; on a slave's port the bond's."""
        return tuple(gid.ipv4 for gid in self.gids if gid.ipv4 is not None)


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
    """Links, RDMA ports and the probes to the peers that the request named."""

    links: tuple[Link, ...]
    rdma: tuple[RdmaPort, ...]
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
