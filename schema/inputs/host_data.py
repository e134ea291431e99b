"""One host's data: what inventory and group_data say of it, and what every runbook takes.

pyinfra merges them with --data into one dict a host; the type of the runbook that runs
(schema/inputs/runbook_data.py) checks it, so that a slip of the pen stops a run
instead of being ignored.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator

from node.rules.heartbeat import LEASE_S, LEAST_LEASE_S
from schema.core.host_keys import HostKeys, key
from schema.core.strings import mount_path
from schema.core.types import Address, Arguments, Device, Devices, Hcas, Name
from schema.desired.rig import Fabric, Node


def as_lease(value: object) -> object:
    """A lease that is only switched on or off."""
    return {True: LEASE_S, False: None}[value] if isinstance(value, bool) else value


class HostData(HostKeys):
    """What every runbook takes on a rig whose engine rigbook installs."""

    unused: ClassVar[frozenset[str]] = frozenset({"lease", "deep"})
    role: Literal["head", "worker"] = key(..., "the head answers clients")
    rank: int | None = key(
        None, "its place in the rig; none: 0 for the head, 1 for a worker", ge=0, le=63
    )
    fabric_address: Address | None = key(None, "its address on the link between the nodes")
    fabric_device: Device | None = key(None, "its own device on that link, such as bond0")
    hcas: Hcas = key((), "its RDMA devices for NCCL_IB_HCA; none: as the recipe says")
    uncabled: Devices = key((), "links of it that never have a cable")
    fabric_mtu: int = key(9000, "what the link carries", "bytes", ge=1280, le=65535)
    home: Annotated[str, AfterValidator(mount_path)] | None = key(
        None, "the login user's home; none: /root or /home/USER"
    )
    recipe: Name = key(..., "what the rig is to serve")
    profile: Name | None = key(None, "a profile of the recipe; none: the recipe's own")
    recipes_dir: Arguments = key((), "more folders of recipes, from the project's root")
    former_rig: Name | None = key(None, "another rig, whose nodes this run may take")
    lease: Annotated[int | None, BeforeValidator(as_lease)] = key(
        None,
        f"the nodes go back by themselves after so long without a sign of life; true: {LEASE_S}",
        "seconds",
        ge=LEAST_LEASE_S,
        le=86400,
    )
    deep: bool = key(False, "hash the weights while looking; slow")

    def node(self, name: str) -> Node:
        """This host as a node of its rig."""
        usual_home = "/root" if self.ssh_user == "root" else f"/home/{self.ssh_user}"
        return Node(
            name=name,
            role=self.role,
            rank=self.rank if self.rank is not None else int(self.role == "worker"),
            lan_address=self.lan_address,
            fabric_address=self.fabric_address,
            fabric_device=self.fabric_device,
            hcas=self.hcas,
            uncabled=self.uncabled,
            ssh_user=self.ssh_user,
            home=self.home or usual_home,
        )

    def fabric(self) -> Fabric | None:
        """The rig's fabric, or None where nothing names this host's device on it."""
        if self.fabric_device is None:
            return None
        return Fabric(mtu=self.fabric_mtu)


class LeasedData(HostData):
    """What changes a rig and may do so under a lease (docs/adr/0027)."""

    unused = frozenset({"deep"})
