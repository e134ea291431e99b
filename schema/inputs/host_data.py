"""One host's data: what inventory and group_data say of it, and what every runbook takes.

pyinfra merges them with --data into one dict a host; the type of the runbook that runs
(schema/inputs/runbook_data.py) checks it, so that a slip of the pen stops a run
instead of being ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from schema.core.base import Frozen
from schema.core.strings import mount_path
from schema.core.types import Address, Argument, Arguments, Device, Module, Name, Names
from schema.desired.rig import Fabric, Node


def key(default: Any, says: str, unit: str = "", **more: Any) -> Any:
    """A key of --data: its default, what it is for, and the unit of its number, for `help`.

    `more` are pydantic's own: bounds, an alias, `repr=False` for a secret.
    """
    return Field(default, description=says, json_schema_extra={"unit": unit}, **more)


class HostData(Frozen):
    """What every runbook takes. A list may be given as `a,b`."""

    # What this runbook has no use for, of the keys that the others take.
    unused: ClassVar[frozenset[str]] = frozenset()

    role: Literal["head", "worker"] = key(..., "the head answers clients")
    rank: int | None = key(
        None, "its place in the rig; none: 0 for the head, 1 for a worker", ge=0, le=63
    )
    lan_address: Address = key(..., "where the host is reached")
    fabric_address: Address | None = key(None, "its address on the link between the nodes")
    fabric_device: Device | None = key(None, "the device of that link, such as bond0")
    fabric_mtu: int = key(9000, "what the link carries", "bytes", ge=1280, le=65535)
    ssh_user: Name = key(..., "who logs in, and whose files the engine's are")
    home: Annotated[str, AfterValidator(mount_path)] | None = key(
        None, "the login user's home; none: the usual one"
    )
    rig: Name = key(..., "the rig's name")
    recipe: Name = key(..., "what the rig is to serve")
    profile: Name | None = key(None, "of the recipe; none: its default")
    recipes_dir: Arguments = key((), "more folders of recipes, from the project's root")
    driver_module: Module | None = key(
        None, "the GPU driver's kernel module; none: nvidia, where the recipe needs it"
    )
    waive: Names = key((), "codes of findings that shall not block; with reason")
    reason: Argument | None = key(None, "why that is safe now; it goes into the journal")
    deep: bool = key(False, "hash the weights while looking; slow")

    def conflict(self) -> tuple[str, str] | None:
        """A key, and what is wrong with it beside the others; None where they go together."""
        if self.waive and not self.reason:
            return "waive", (
                'waive: needs a reason; allowed: --data waive=CODE --data reason="why this is safe '
                'now"'
            )
        if self.reason and not self.waive:
            return "reason", "reason: without waive; allowed: together with waive"
        return None

    def node(self, name: str) -> Node:
        """This host as a node of its rig."""
        usual_home = "/root" if self.ssh_user == "root" else f"/home/{self.ssh_user}"
        return Node(
            name=name,
            role=self.role,
            rank=self.rank if self.rank is not None else int(self.role == "worker"),
            lan_address=self.lan_address,
            fabric_address=self.fabric_address,
            ssh_user=self.ssh_user,
            home=self.home or usual_home,
        )

    def fabric(self) -> Fabric | None:
        """The rig's fabric, or None where group_data names no device."""
        if self.fabric_device is None:
            return None
        return Fabric(device=self.fabric_device, mtu=self.fabric_mtu)
