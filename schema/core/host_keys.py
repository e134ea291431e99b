"""What inventory, group_data and --data say of a host of any rig: the keys of every runbook."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from schema.core.base import Frozen
from schema.core.types import Address, Argument, Module, Name, Names


def key(default: Any, says: str, unit: str = "", **more: Any) -> Any:
    """A key of --data: its default, what it is for, and the unit of its number, for `help`.

    `more` are pydantic's own: bounds, an alias, `repr=False` for a secret.
    """
    return Field(default, description=says, json_schema_extra={"unit": unit}, **more)


class HostKeys(Frozen):
    """What every runbook takes on every rig. A list may be given as `a,b`."""

    # What this runbook has no use for, of the keys that the others take.
    unused: ClassVar[frozenset[str]] = frozenset()
    # The kind of rig that these keys are for, where they are not for the usual one.
    rigs: ClassVar[str] = ""

    lan_address: Address = key(..., "where the host is reached")
    ssh_user: Name = key(..., "who logs in, and whose files the engine's are")
    rig: Name = key(..., "the rig's name")
    driver_module: Module | None = key(
        None, "the GPU driver's kernel module; none: nvidia, where the rig needs it"
    )
    waive: Names = key((), "codes of findings that shall not block; with reason")
    reason: Argument | None = key(None, "why that is safe now; it goes into the journal")

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
