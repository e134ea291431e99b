"""catalog/xids.yaml: each Xid that NVIDIA documents, and what is done about it first."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from schema.core.base import Frozen
from schema.core.errors import SpecError
from schema.core.parse import misfit
from schema.core.yaml_file import read_map

XIDS = "catalog/xids.yaml"
Action = Literal[
    "none", "restart_engine", "reset_gpu", "reboot", "nvlink", "power_cable", "update", "support",
    "follow", "not_given",
]  # fmt: skip


class Xid(Frozen):
    """A code of the NVIDIA driver; `what` None: current drivers do not use it."""

    code: int = Field(ge=1)
    name: str
    what: str | None = None
    action: Action


class XidTable(Frozen):
    """All codes, where they were read and when."""

    source: str
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    xids: tuple[Xid, ...]

    def find(self, code: int) -> Xid:
        """The entry of a code; one without an action for a code that nobody documented."""
        unknown = Xid(code=code, name="undocumented", action="not_given")
        return next((xid for xid in self.xids if xid.code == code), unknown)


def load(root: Path) -> XidTable:
    """The table below `root`. SpecError says what is wrong in it."""
    try:
        return XidTable.model_validate(read_map(root / XIDS, XIDS))
    except ValidationError as error:
        raise SpecError(f"{XIDS}: {misfit(error)}") from None
