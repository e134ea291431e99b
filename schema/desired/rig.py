"""A rig: the machines that together serve one model, and the links between them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from schema.core.base import Frozen
from schema.core.strings import mount_path
from schema.core.types import Address, Device, Hca, HostName, Name


class Fabric(Frozen):
    """The private link between the nodes: its MTU in bytes. Each node has its own device on it."""

    mtu: Annotated[int, Field(ge=1280, le=65535)] = 9000


class Node(Frozen):
    """One machine of a rig. `rank` 0 is the head, which answers clients.

    `fabric_device` and `fabric_address` are None on a rig of one node. `hcas` are the RDMA devices
    that its engine is to use, in the form of NCCL_IB_HCA; empty: as the recipe says. `uncabled` are
    links that never have a cable. `home` is the login user's home on the node, the meaning of `~`
    in a recipe's volumes.
    """

    name: HostName
    role: Literal["head", "worker"]
    rank: Annotated[int, Field(ge=0, le=63)]
    lan_address: Address
    fabric_address: Address | None = None
    fabric_device: Device | None = None
    hcas: tuple[Hca, ...] = ()
    uncabled: tuple[Device, ...] = ()
    ssh_user: Name
    home: Annotated[str, AfterValidator(mount_path)]


class Rig(Frozen):
    """All nodes of a rig, in rank order, with what is common to them."""

    name: Name
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]
    fabric: Fabric | None = None

    @model_validator(mode="after")
    def _one_head_and_a_rank_each(self) -> Rig:
        heads = [node.name for node in self.nodes if node.role == "head"]
        if len(heads) != 1:
            listed = ", ".join(heads) or "none"
            raise ValueError(f"has {len(heads)} heads ({listed}); allowed: one host of role head")
        if [node.rank for node in self.nodes] != list(range(len(self.nodes))):
            ranks = ", ".join(f"{node.name} {node.rank}" for node in self.nodes)
            raise ValueError(f"ranks are {ranks}; allowed: 0, 1, 2 … one each, without a gap")
        if self.nodes[0].role != "head":
            raise ValueError(
                f"{self.nodes[0].name} has rank 0; allowed: rank 0 for {heads[0]}, the head"
            )
        for what in ("name", "lan_address", "fabric_address"):
            seen = [getattr(n, what) for n in self.nodes if getattr(n, what) is not None]
            if len(seen) != len(set(seen)):
                raise ValueError(
                    f"two nodes share a {what}: {', '.join(map(str, seen))}; allowed: one each"
                )
        if len(self.nodes) > 1:
            if self.fabric is None:
                raise ValueError("fabric_device: is missing in group_data; several nodes need one")
            for what in ("fabric_device", "fabric_address"):
                bare = [n.name for n in self.nodes if getattr(n, what) is None]
                if bare:
                    raise ValueError(f"{', '.join(bare)}: {what}: is missing in the inventory")
        return self

    @property
    def head(self) -> Node:
        """The node of rank 0."""
        return self.nodes[0]

    @property
    def workers(self) -> tuple[Node, ...]:
        """The nodes of rank 1 and up, in rank order."""
        return self.nodes[1:]

    def node(self, name: str) -> Node:
        """The node called `name`; KeyError when the rig has none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
